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

# Unity builds: files of one folder compile together, at most `most` at a time, which takes half as long as one at a time. So names
# in unnamed namespaces differ within a folder. PERIGEE_UNITY=OFF compiles each file alone: for work on one of them.
set(unity ON)
if(DEFINED ENV{PERIGEE_UNITY})
  set(unity $ENV{PERIGEE_UNITY})
endif()
option(PERIGEE_UNITY "Compile the files of a folder together (default: from the environment, else ON)" ${unity})
# perigee_unity(TARGET [ALONE pattern]): files whose path matches the pattern are compiled alone.
function(perigee_unity target)
  cmake_parse_arguments(PARSE_ARGV 1 given "" "ALONE" "")
  if(NOT PERIGEE_UNITY)
    return()
  endif()
  set(most 8)
  get_target_property(sources ${target} SOURCES)
  list(SORT sources)
  if(given_ALONE)
    list(FILTER sources EXCLUDE REGEX ${given_ALONE})
  endif()
  set(count 0)
  foreach(source IN LISTS sources)
    cmake_path(GET source PARENT_PATH folder)
    if(NOT folder STREQUAL "${last}" OR count EQUAL most)
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
  # A type of an unnamed namespace that a class of the same file has is reported, since GCC takes the included file for a header.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endfunction()
