# SPDX-License-Identifier: Apache-2.0
# Where bila finds what it is built with. One function, three names:
#
#   bila_find_dependency(Eigen3)      gives Eigen3::Eigen          the library and everything that uses it
#   bila_find_dependency(Catch2)      gives Catch2::Catch2         tests, version 2 or 3
#   bila_find_dependency(benchmark)   gives benchmark::benchmark   benchmarks
#
# The first of these that exists is taken: a target of that name, an installed package, and, unless
# BILA_FETCH_DEPENDENCIES is off, a pinned download. Call it in the directory that links the target or above it.
include_guard(GLOBAL)
include(FetchContent)

set(bila_Eigen3_target Eigen3::Eigen)
set(bila_Eigen3_wanted "Eigen3 3.4 or 5")
set(bila_Eigen3_package libeigen3-dev)
set(bila_Eigen3_url https://gitlab.com/libeigen/eigen/-/archive/3.4.0/eigen-3.4.0.tar.gz)
set(bila_Eigen3_sha256 8586084f71f9bde545ee7fa6d00288b264a2b7ac3607b974e54d13e7162c1c72)

set(bila_Catch2_target Catch2::Catch2)
set(bila_Catch2_wanted Catch2)
set(bila_Catch2_package catch2)
set(bila_Catch2_url https://github.com/catchorg/Catch2/archive/refs/tags/v3.5.2.tar.gz)
set(bila_Catch2_sha256 269543a49eb76f40b3f93ff231d4c24c27a7e16c90e47d2e45bcc564de470c6e)

set(bila_benchmark_target benchmark::benchmark)
set(bila_benchmark_wanted benchmark)
set(bila_benchmark_package libbenchmark-dev)
set(bila_benchmark_url https://github.com/google/benchmark/archive/refs/tags/v1.8.3.tar.gz)
set(bila_benchmark_sha256 6bc180a57d23d4d9515519f92b0c83d61b05b5bab188961f36ac7b06b0d9e9ce)

function(bila_find_dependency name)
  set(target ${bila_${name}_target})
  if(TARGET ${target})
    return()
  endif()

  if(name STREQUAL "Eigen3")
    include("${CMAKE_CURRENT_FUNCTION_LIST_DIR}/find_eigen.cmake")
  else()
    find_package(${name} QUIET)
  endif()
  if(TARGET ${target})
    message(STATUS "bila: ${name} ${${name}_VERSION} found in ${${name}_DIR}")
    return()
  endif()

  if(NOT BILA_FETCH_DEPENDENCIES)
    set(seen "")
    if(${name}_CONSIDERED_VERSIONS)
      set(seen " (found only: ${${name}_CONSIDERED_VERSIONS})")
    endif()
    message(FATAL_ERROR "bila needs ${bila_${name}_wanted}${seen}: install the Debian package ${bila_${name}_package}, point "
                        "CMAKE_PREFIX_PATH at an installation, or set BILA_FETCH_DEPENDENCIES=ON to download it.")
  endif()

  # Seen only by the subprojects added below: they bring the library, not their tests, install rules or warnings as errors.
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
  set(BUILD_TESTING OFF)
  set(BENCHMARK_ENABLE_TESTING OFF)
  set(BENCHMARK_ENABLE_INSTALL OFF)
  set(BENCHMARK_ENABLE_WERROR OFF)

  set(only_sources "")
  if(name STREQUAL "Eigen3")
    # Eigen's own build adds tests, a Fortran check and an uninstall target; only its headers are wanted, so no subproject.
    set(only_sources SOURCE_SUBDIR bila_headers_only)
  endif()
  FetchContent_Declare(${name} URL ${bila_${name}_url} URL_HASH SHA256=${bila_${name}_sha256}
                       DOWNLOAD_EXTRACT_TIMESTAMP OFF SYSTEM ${only_sources})
  FetchContent_MakeAvailable(${name})
  if(name STREQUAL "Eigen3" AND NOT TARGET Eigen3::Eigen)
    # Imported, so that installing bila does not ask for an export set of Eigen's.
    add_library(Eigen3::Eigen INTERFACE IMPORTED GLOBAL)
    target_include_directories(Eigen3::Eigen INTERFACE "${eigen3_SOURCE_DIR}")
  endif()
endfunction()
