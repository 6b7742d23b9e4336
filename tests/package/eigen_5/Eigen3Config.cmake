# SPDX-License-Identifier: Apache-2.0
# Stands for Eigen 5 over whatever headers are at hand.
if(NOT TARGET Eigen3::Eigen)
  add_library(Eigen3::Eigen INTERFACE IMPORTED)
  target_include_directories(Eigen3::Eigen INTERFACE "${EIGEN_INCLUDE_DIR}")
endif()
