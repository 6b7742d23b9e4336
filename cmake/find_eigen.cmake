# SPDX-License-Identifier: Apache-2.0
# Eigen 3.4 or 5, which followed it. A package of Eigen answers to its own major version only, so each is asked for; the one that
# Eigen3_DIR names comes first, and a lookup that refuses it would forget the name.
set(bila_eigen_named "${Eigen3_DIR}")
foreach(bila_eigen_version 3.4 5)
  if(bila_eigen_named AND NOT TARGET Eigen3::Eigen)
    find_package(Eigen3 ${bila_eigen_version} QUIET PATHS "${bila_eigen_named}" NO_DEFAULT_PATH)
  endif()
endforeach()
foreach(bila_eigen_version 3.4 5)
  if(NOT TARGET Eigen3::Eigen)
    find_package(Eigen3 ${bila_eigen_version} QUIET)
  endif()
endforeach()
