# SPDX-License-Identifier: Apache-2.0
# Eigen 5 is compatible with requests for 5 and, as CMake's rule for one major version has it, no range that begins below.
set(PACKAGE_VERSION 5.0.1)
if(PACKAGE_FIND_VERSION_MAJOR STREQUAL "5" OR NOT PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
else()
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
endif()
