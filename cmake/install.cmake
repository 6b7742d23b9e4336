# SPDX-License-Identifier: Apache-2.0
# Headers, the CMake package, the pkg-config file and the licence. Nothing depends on the architecture, so all of it goes to share/.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(bila_package_dir ${CMAKE_INSTALL_DATADIR}/cmake/bila)
set(bila_pkgconfig_dir ${CMAKE_INSTALL_DATADIR}/pkgconfig)

write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/bilaConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)

# Relative to the .pc file, so that an installed tree can be moved.
file(RELATIVE_PATH bila_include_from_pkgconfig "${CMAKE_INSTALL_FULL_DATADIR}/pkgconfig" "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
configure_file(cmake/bila.pc.in "${CMAKE_CURRENT_BINARY_DIR}/bila.pc" @ONLY)

install(TARGETS bila bila_cuda EXPORT bilaTargets FILE_SET HEADERS INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT bilaTargets NAMESPACE bila:: DESTINATION ${bila_package_dir})
install(FILES cmake/bilaConfig.cmake cmake/find_eigen.cmake "${CMAKE_CURRENT_BINARY_DIR}/bilaConfigVersion.cmake" DESTINATION ${bila_package_dir})
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/bila.pc" DESTINATION ${bila_pkgconfig_dir})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
