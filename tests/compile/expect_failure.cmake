# SPDX-License-Identifier: Apache-2.0
# Compiles SOURCE with -DBILA_CASE=CASE and asks for an error with the sentence of that case's "// expect: " line, near the top.
# Case 0 must compile. Needs COMPILER, ONLY_CHECK (its flags for no output), INCLUDES, SOURCE and CASE.
list(TRANSFORM INCLUDES PREPEND -I)
execute_process(COMMAND "${COMPILER}" -std=c++20 ${ONLY_CHECK} ${INCLUDES} -DBILA_CASE=${CASE} "${SOURCE}"
                RESULT_VARIABLE status ERROR_VARIABLE answer)

if(CASE EQUAL 0)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "Without a misuse this must compile, but:\n${answer}")
  endif()
  return()
endif()

file(READ "${SOURCE}" text)
if(NOT text MATCHES "if BILA_CASE == ${CASE}\n *// expect: ([^\n]+)\n")
  message(FATAL_ERROR "Case ${CASE} has no line '// expect: SENTENCE' below its #if")
endif()
set(sentence "${CMAKE_MATCH_1}")

if(status EQUAL 0)
  message(FATAL_ERROR "This must not compile, but it does")
endif()
string(FIND "${answer}" "${sentence}" place)
if(place EQUAL -1)
  message(FATAL_ERROR "Expected an error with the sentence\n  ${sentence}\nbut the compiler said\n${answer}")
endif()
string(SUBSTRING "${answer}" 0 ${place} before)
string(REGEX MATCHALL "\n" lines "${before}")
list(LENGTH lines lines)
if(lines GREATER 12)
  message(FATAL_ERROR "The sentence\n  ${sentence}\ncomes after ${lines} lines only:\n${answer}")
endif()
