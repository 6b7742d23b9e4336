# SPDX-License-Identifier: Apache-2.0
# Runs PROGRAM with ARGUMENTS (separated by blanks) and expects exit status 2 and one line on stderr that contains EXPECTED.
separate_arguments(arguments UNIX_COMMAND "${ARGUMENTS}")
execute_process(COMMAND ${PROGRAM} ${arguments} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE error)
if(NOT status STREQUAL "2")
  message(FATAL_ERROR "exit status ${status} instead of 2; it wrote: ${output}${error}")
endif()
string(FIND "${error}" "${EXPECTED}" at)
if(at EQUAL -1 OR NOT error MATCHES "^bila_compare: [^\n]+\n$")
  message(FATAL_ERROR "expected one line with '${EXPECTED}', got: ${error}")
endif()
