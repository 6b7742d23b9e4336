# SPDX-License-Identifier: Apache-2.0
# What find_package(bila) runs.
include("${CMAKE_CURRENT_LIST_DIR}/find_eigen.cmake")
if(NOT TARGET Eigen3::Eigen)
  set(bila_FOUND FALSE)
  set(bila_NOT_FOUND_MESSAGE "bila needs Eigen3 3.4 or 5")
  return()
endif()
include("${CMAKE_CURRENT_LIST_DIR}/bilaTargets.cmake")
