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
# GCC takes the included files for headers, and would warn of classes with members of types in unnamed namespaces.
set(unity_options $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)

# perigee_unity(VARIABLE ROOT folder [ALONE pattern]): replaces the sources in VARIABLE by files that include up to 8 of a folder
# each, except those whose path matches the pattern. ROOT is an include folder of the target: names below it do not depend on the
# checkout, as CMake's own unity builds do, so that a compiler cache is shared.
function(perigee_unity variable)
  cmake_parse_arguments(PARSE_ARGV 1 given "" "ROOT;ALONE" "")
  if(NOT PERIGEE_UNITY)
    return()
  endif()
  set(sources ${${variable}})
  set(found)
  if(given_ALONE)
    set(found ${sources})
    list(FILTER found INCLUDE REGEX ${given_ALONE})
    list(FILTER sources EXCLUDE REGEX ${given_ALONE})
  endif()
  list(SORT sources)
  set(groups)
  foreach(source IN LISTS sources)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${given_ROOT} OUTPUT_VARIABLE name)
    cmake_path(GET name PARENT_PATH folder)
    string(MAKE_C_IDENTIFIER ${folder} folder)
    math(EXPR part "0${count_${folder}} / 8")
    math(EXPR count_${folder} "0${count_${folder}} + 1")
    set(group ${folder}_${part})
    list(APPEND groups ${group})
    string(APPEND text_${group} "#include \"${name}\"\n")
  endforeach()
  list(REMOVE_DUPLICATES groups)
  foreach(group IN LISTS groups)
    set(file ${PROJECT_BINARY_DIR}/unity/${variable}/${group}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text_${group}}" @ONLY)
    list(APPEND found ${file})
  endforeach()
  set(${variable} ${found} PARENT_SCOPE)
endfunction()
