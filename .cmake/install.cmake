# `cmake --install build --prefix P`: the command, the libraries, headers as <perigee/...>, what ships with the command, and a
# package for find_package(Perigee).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(libraries)
foreach(target perigee_core perigee_torch perigee_cbc perigee_sentencepiece perigee_tokenizers perigee_compressed perigee_s3 perigee_watch perigee_serve perigee_cuda)
  if(TARGET ${target})
    list(APPEND libraries ${target})
  endif()
endforeach()
get_filename_component(torch_folder ${PERIGEE_TORCH} REALPATH)
# Built with the RUNPATH of the installed file. Otherwise CMake pads the RUNPATH of the build with empty elements, which make the
# loader search the current folder.
set_target_properties(${libraries} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH_USE_LINK_PATH ON)
foreach(target IN LISTS libraries)
  set_property(TARGET ${target} PROPERTY INSTALL_RPATH $ORIGIN ${torch_folder}/lib ${CMAKE_BUILD_RPATH})
endforeach()
install(TARGETS ${libraries} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET perigee)
  set_target_properties(perigee PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
  set_property(TARGET perigee PROPERTY INSTALL_RPATH $ORIGIN/../${CMAKE_INSTALL_LIBDIR} $ORIGIN ${CMAKE_BUILD_RPATH})
  install(TARGETS perigee RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
# The public headers: perigee.h and all headers that it includes. None includes fmt, since LibTorch contains another version.
set(public_headers perigee.h)
set(unread ${public_headers})
while(unread)
  list(POP_FRONT unread header)
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${header})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/src/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/perigee/${folder})
  file(STRINGS ${PROJECT_SOURCE_DIR}/src/${header} includes REGEX "^#include \"")
  foreach(include IN LISTS includes)
    string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" include "${include}")
    if(NOT include IN_LIST public_headers)
      list(APPEND public_headers ${include})
      list(APPEND unread ${include})
    endif()
  endforeach()
endwhile()
install(DIRECTORY runtime strategies DESTINATION ${CMAKE_INSTALL_DATADIR}/perigee)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Perigee)
configure_package_config_file(.cmake/PerigeeConfig.cmake.in ${PROJECT_BINARY_DIR}/package/PerigeeConfig.cmake
  INSTALL_DESTINATION ${package} PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
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
  configure_file(.cmake/PerigeeConfig.cmake.in ${PROJECT_BINARY_DIR}/PerigeeConfig.cmake @ONLY)
endblock()
