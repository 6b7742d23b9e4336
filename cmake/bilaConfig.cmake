# SPDX-License-Identifier: Apache-2.0
# What find_package(bila) runs.
if(NOT TARGET Eigen3::Eigen)
  include(CMakeFindDependencyMacro)
  find_dependency(Eigen3 3.4)
endif()
include("${CMAKE_CURRENT_LIST_DIR}/bilaTargets.cmake")
