# Build speed: ccache (shared by all checkouts of a machine, including precompiled headers) and mold, if they are found.
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
  # Without it, a precompiled header contains its creation time and never hits.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()
find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# Precompiled headers of LibTorch fill the heap, whose garbage GCC would look for in each file: 10 to 20 % of its time.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1000000>)

# Unity builds: files of a folder are compiled together, which takes half as long as one at a time. So names in unnamed namespaces
# differ within a folder. PERIGEE_UNITY=OFF compiles each file alone, for somebody who edits and compiles one of them many times.
set(unity ON)
if(DEFINED ENV{PERIGEE_UNITY})
  set(unity $ENV{PERIGEE_UNITY})
endif()
option(PERIGEE_UNITY "Compile the files of a folder together (default: from the environment, else ON)" ${unity})

# perigee_unity(TARGET [ALONE pattern]): compiles up to 8 of the target's files of a folder together; those whose path matches the
# pattern alone.
function(perigee_unity target)
  cmake_parse_arguments(PARSE_ARGV 1 given "" "ALONE" "")
  if(NOT PERIGEE_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(SORT sources)
  if(given_ALONE)
    list(FILTER sources EXCLUDE REGEX ${given_ALONE})
  endif()
  set(count 0)
  foreach(source IN LISTS sources)
    cmake_path(GET source PARENT_PATH folder)
    if(NOT folder STREQUAL "${last}" OR count EQUAL 8)
      if(NOT folder STREQUAL "${last}")
        set(part 0)
      endif()
      math(EXPR part "${part} + 1")
      set(count 0)
      set(last ${folder})
      cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE group)
      string(MAKE_C_IDENTIFIER ${group}_${part} group)
    endif()
    math(EXPR count "${count} + 1")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # GCC takes the included files for headers, and would warn of classes with members of types in unnamed namespaces.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endfunction()
