# `cmake --install build --prefix P`: the command, the libraries, headers as <perigee/...>, what ships with the command, and a
# package for find_package(Perigee).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(libraries)
foreach(target perigee_core perigee_torch perigee_cbc perigee_sentencepiece perigee_cuda)
  if(TARGET ${target})
    list(APPEND libraries ${target})
  endif()
endforeach()
get_filename_component(torch_folder ${PERIGEE_TORCH} REALPATH)
set_target_properties(${libraries} PROPERTIES
  INSTALL_RPATH "$ORIGIN;${torch_folder}/lib;${CMAKE_BUILD_RPATH}" INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS ${libraries} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET perigee)
  set_target_properties(perigee PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${CMAKE_BUILD_RPATH}")
  install(TARGETS perigee RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY src/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/perigee FILES_MATCHING PATTERN "*.h")
# The fmt that the libraries were built with: an embedder sees it before LibTorch's.
install(DIRECTORY ${fmt_INCLUDE}/fmt DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/perigee/fmt_first)
install(DIRECTORY runtime strategies DESTINATION ${CMAKE_INSTALL_DATADIR}/perigee)

get_target_property(fmt_library dep::fmt INTERFACE_LINK_LIBRARIES)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Perigee)
set(fmt_first ${CMAKE_INSTALL_INCLUDEDIR}/perigee/fmt_first)
configure_package_config_file(.cmake/PerigeeConfig.cmake.in ${PROJECT_BINARY_DIR}/package/PerigeeConfig.cmake
  INSTALL_DESTINATION ${package} PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR fmt_first)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/PerigeeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/PerigeeConfig.cmake ${PROJECT_BINARY_DIR}/PerigeeConfigVersion.cmake
  DESTINATION ${package})

# The same package for the build folder itself: `-DCMAKE_PREFIX_PATH=BUILD`.
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include_perigee)
file(CREATE_LINK ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/include_perigee/perigee SYMBOLIC)
block()
  set(PACKAGE_INIT "")
  set(PACKAGE_CMAKE_INSTALL_LIBDIR ${PROJECT_BINARY_DIR})
  set(PACKAGE_CMAKE_INSTALL_INCLUDEDIR ${PROJECT_BINARY_DIR}/include_perigee)
  set(PACKAGE_fmt_first ${PROJECT_BINARY_DIR}/fmt_first)
  configure_file(.cmake/PerigeeConfig.cmake.in ${PROJECT_BINARY_DIR}/PerigeeConfig.cmake @ONLY)
endblock()
