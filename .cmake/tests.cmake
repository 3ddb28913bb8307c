# Tests: one executable per folder of tests/, one ctest entry per test case. They run in the source folder, and the environment
# variable PERIGEE_BUILD names the build folder, where the command and the plugins are.
include(CTest)
if(NOT BUILD_TESTING)
  return()
endif()
find_package(Catch2 QUIET)
if(NOT Catch2_FOUND OR NOT TARGET dep::rapidcheck)
  message(STATUS "Tests: left out (scripts/setup --test installs their packages)")
  return()
endif()
include(Catch)
# The environment of all tests. One thread for each process: several tests run at once, and threads of OpenMP that wait keep a core
# busy. Modules that tests build, in folders of other names each time, are in the compiler's cache, too; tests have an XDG_CACHE_HOME
# of their own.
set(test_environment "set(ENV{PERIGEE_BUILD} \"${PROJECT_BINARY_DIR}\")\nset(ENV{OMP_NUM_THREADS} 1)\n")
if(CCACHE)
  execute_process(COMMAND ${CCACHE} -k cache_dir OUTPUT_VARIABLE cache OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(APPEND test_environment "set(ENV{CMAKE_CXX_COMPILER_LAUNCHER} \"${CCACHE}\")\nset(ENV{CCACHE_DIR} \"${cache}\")\n"
    "set(ENV{CCACHE_BASEDIR} /)\nset(ENV{CCACHE_NOHASHDIR} 1)\n")
endif()
file(CONFIGURE OUTPUT test_environment.cmake CONTENT "${test_environment}")
set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${PROJECT_BINARY_DIR}/test_environment.cmake)
if(Catch2_VERSION VERSION_GREATER_EQUAL 3)
  configure_file(.cmake/catch2_v3.h ${PROJECT_BINARY_DIR}/catch2_v3/catch2/catch.hpp COPYONLY)
  include_directories(${PROJECT_BINARY_DIR}/catch2_v3)
endif()

add_library(core_tests INTERFACE)
target_include_directories(core_tests INTERFACE ${PROJECT_SOURCE_DIR})
target_sources(core_tests INTERFACE ${PROJECT_SOURCE_DIR}/tests/support/process.cc)
target_link_libraries(core_tests INTERFACE perigee_core Catch2::Catch2WithMain dep::rapidcheck)

# Test code is optimised less, so that it compiles sooner; the libraries under test keep -O2.
target_compile_options(core_tests INTERFACE -O1 ${unity_options})

# Compiled once for all tests without LibTorch.
file(WRITE ${PROJECT_BINARY_DIR}/core_test_pch.cc "")
add_library(core_test_pch OBJECT ${PROJECT_BINARY_DIR}/core_test_pch.cc)
target_link_libraries(core_test_pch PRIVATE core_tests)
target_precompile_headers(core_test_pch PRIVATE <algorithm> <map> <string> <vector> <fmt/format.h> <nlohmann/json.hpp>
  <catch2/catch.hpp>)

if(TARGET perigee_torch)
  add_library(torch_tests INTERFACE)
  target_link_libraries(torch_tests INTERFACE core_tests perigee_torch)
  # Compiled once for all tests: LibTorch's headers take 20 s.
  file(WRITE ${PROJECT_BINARY_DIR}/torch_test_pch.cc "")
  add_library(torch_test_pch OBJECT ${PROJECT_BINARY_DIR}/torch_test_pch.cc)
  target_link_libraries(torch_test_pch PRIVATE torch_tests)
  target_precompile_headers(torch_test_pch PRIVATE ${PROJECT_SOURCE_DIR}/tests/support/torch_test.h)
endif()

file(GLOB_RECURSE test_sources RELATIVE ${PROJECT_SOURCE_DIR}/tests CONFIGURE_DEPENDS tests/*_test.cc)
set(test_folders)
foreach(source IN LISTS test_sources)
  string(REGEX REPLACE "/.*" "" folder ${source})
  list(APPEND test_folders ${folder})
endforeach()
list(REMOVE_DUPLICATES test_folders)

foreach(folder IN LISTS test_folders)
  set(core_test OFF)
  if(folder IN_LIST core_folders OR folder MATCHES "^(command|structure)$")
    set(core_test ON)
  elseif(NOT TARGET perigee_torch OR (folder STREQUAL cuda AND NOT TARGET perigee_cuda))
    continue()
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS tests/${folder}/*.cc)
  list(FILTER sources EXCLUDE REGEX "/(plugin|make|program)_[a-z]+\\.cc$")  # libraries and programs that tests use
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS tests/${folder}/*_test.cc)  # and not tests, such as program_test.cc
  list(APPEND sources ${tests})
  list(REMOVE_DUPLICATES sources)
  list(FILTER sources EXCLUDE REGEX "tests/cuda/(host|simulated)/")
  if(folder STREQUAL command)  # the launcher is tested in processes of its own
    file(GLOB launcher_sources CONFIGURE_DEPENDS tools/perigee/launch/*.cc)
    list(APPEND sources ${launcher_sources})
    add_executable(program_launcher tests/command/hosts/program_launcher.cc ${launcher_sources})
    target_include_directories(program_launcher PRIVATE ${PROJECT_SOURCE_DIR})
    target_compile_options(program_launcher PRIVATE -O1 -fsanitize=address)
    target_link_options(program_launcher PRIVATE -fsanitize=address)
    target_link_libraries(program_launcher PRIVATE perigee_core)
  elseif(folder STREQUAL fuzz)  # the entries of fuzzers (.cmake/fuzz.cmake) read messages between launchers, too
    list(APPEND sources ${PROJECT_SOURCE_DIR}/tools/perigee/launch/host_messages.cc)
  elseif(folder STREQUAL methods)  # methods edit plans of these graphs
    list(APPEND sources ${PROJECT_SOURCE_DIR}/tests/graph/support.cc)
  elseif(folder STREQUAL train)  # runs are resumed from checkpoints that the test writes
    list(APPEND sources ${PROJECT_SOURCE_DIR}/tests/checkpoint/support.cc)
  endif()
  if(folder MATCHES "^(checkpoint|command|train)$")
    list(APPEND sources ${PROJECT_SOURCE_DIR}/tests/support/s3_server.cc)
  endif()
  set(tests_${folder} ${sources})
  perigee_unity(tests_${folder} ROOT ${PROJECT_SOURCE_DIR} ALONE /coverage_test.cc)  # it has a definition of its own
  add_executable(tests_${folder} ${tests_${folder}})
  if(core_test)
    target_link_libraries(tests_${folder} PRIVATE core_tests)
    target_precompile_headers(tests_${folder} REUSE_FROM core_test_pch)
  else()
    target_link_libraries(tests_${folder} PRIVATE torch_tests)
    target_precompile_headers(tests_${folder} REUSE_FROM torch_test_pch)
  endif()
  target_link_libraries(tests_${folder} PRIVATE ${served_by_mimalloc})
  if(folder STREQUAL command)
    add_dependencies(tests_command program_launcher)
    if(TARGET bench_ceilings)  # scripts/gpu-check
      add_dependencies(tests_command bench_ceilings)
    endif()
  endif()
  if(folder STREQUAL cuda)
    add_dependencies(tests_cuda perigee_cuda)
  elseif(folder STREQUAL profile)  # locks databases as another program would
    target_link_libraries(tests_profile PRIVATE dep::sqlite)
  endif()
  if(TARGET perigee_cbc)  # the solver `ilp`
    add_dependencies(tests_${folder} perigee_cbc)
  endif()
  # Catch's exit status is 0 where a name matches no case, without --warn NoTests.
  catch_discover_tests(tests_${folder}
    TEST_PREFIX "${folder}/"
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    EXTRA_ARGS --warn NoTests
    PROPERTIES TIMEOUT 300)
  # Repeats the cases tagged [device] on a GPU; skipped without one.
  if(TARGET perigee_cuda AND folder MATCHES "^(exec|parity|train)$")
    add_dependencies(tests_${folder} perigee_cuda)
    catch_discover_tests(tests_${folder}
      TEST_SPEC "[device]"
      TEST_PREFIX "${folder}_cuda/"
      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
      EXTRA_ARGS --warn NoTests
      PROPERTIES TIMEOUT 300 ENVIRONMENT "PERIGEE_TEST_DEVICE=cuda" RESOURCE_LOCK gpu
        SKIP_REGULAR_EXPRESSION "skipped: no GPU")
  endif()
endforeach()

# The CUDA kernels, compiled for the host under the address sanitizer, run the tests of ops.
if(TARGET tests_cuda)
  file(GLOB kernels RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS src/cuda/kernels/*.cu tests/cuda/host/*.cu)
  set(kernels_on_host tests/cuda/host/launch.cc)
  foreach(kernel IN LISTS kernels)
    get_filename_component(name ${kernel} NAME_WE)
    set(wrapped ${PROJECT_BINARY_DIR}/kernels_on_host/${name}.cc)
    file(CONFIGURE OUTPUT ${wrapped} CONTENT "#include \"tests/cuda/host/launch.h\"\n#include \"${kernel}\"\n")
    list(APPEND kernels_on_host ${wrapped})
  endforeach()
  add_library(kernels_on_host OBJECT ${kernels_on_host})
  target_include_directories(kernels_on_host PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
  target_include_directories(kernels_on_host SYSTEM PRIVATE ${toolkit}/include)
  target_compile_options(kernels_on_host PRIVATE -O1 -fsanitize=address,alignment -fno-sanitize-recover=alignment -fno-omit-frame-pointer)
  # The switches between threads, which take most of the tests' time, are not what the sanitizer looks at.
  set_source_files_properties(tests/cuda/host/launch.cc PROPERTIES COMPILE_OPTIONS "-O2;-fno-sanitize=address,alignment")
  file(GLOB host_sources CONFIGURE_DEPENDS
    tests/cuda/host/*.cc tests/cuda/simulated/*.cc tests/cuda/simulated/nccl/*.cc
    tests/cuda/simulated/programs/*.cc src/cuda/*.cc src/cuda/graphs/*.cc src/cuda/ops/*.cc src/cuda/nccl/*.cc)
  list(FILTER host_sources EXCLUDE REGEX "host/launch.cc$|src/cuda/(calls|host|torch_allocator|torch_side).cc$")
  foreach(part built_in memory models ranks support)  # plans that the programs of simulated GPUs carry out
    list(APPEND host_sources ${PROJECT_SOURCE_DIR}/tests/parity/support/${part}.cc)
  endforeach()
  foreach(part ops_test shapes_test support)
    list(APPEND host_sources ${PROJECT_SOURCE_DIR}/tests/cuda/${part}.cc)
  endforeach()
  perigee_unity(host_sources ROOT ${PROJECT_SOURCE_DIR})
  add_executable(tests_cuda_host ${host_sources})
  target_include_directories(tests_cuda_host SYSTEM PRIVATE ${toolkit}/include ${nccl_INCLUDE})
  target_link_libraries(tests_cuda_host PRIVATE torch_tests kernels_on_host -fsanitize=address,alignment)
  target_precompile_headers(tests_cuda_host REUSE_FROM torch_test_pch)
  catch_discover_tests(tests_cuda_host
    TEST_PREFIX "cuda_host/"
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    EXTRA_ARGS --warn NoTests
    PROPERTIES TIMEOUT 300)
endif()

# The tests of capture/ load model plugins and read LibTorch's headers.
if(TARGET tests_capture)
  set_source_files_properties(tests/capture/coverage_test.cc PROPERTIES
    COMPILE_DEFINITIONS "PERIGEE_TORCH_INCLUDE=\"${PERIGEE_TORCH}/include/torch/csrc/api/include\"")
  add_library(plugin_model MODULE tests/capture/plugin_model.cc)
  target_link_libraries(plugin_model PRIVATE perigee_torch)
  add_dependencies(tests_capture plugin_model)
endif()

# Model and sampler plugins that were built with no version, another Perigee, and another LibTorch.
foreach(version none perigee torch)
  add_library(plugin_of_other_${version} MODULE tests/data/plugin_old.cc)
  target_compile_definitions(plugin_of_other_${version} PRIVATE OTHER_${version})
  target_include_directories(plugin_of_other_${version} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  foreach(tests tests_capture tests_data)
    if(TARGET ${tests})
      add_dependencies(${tests} plugin_of_other_${version})
    endif()
  endforeach()
endforeach()

# A sampler library (data.sampler), built as by a user.
add_library(plugin_sampler MODULE tests/data/plugin_sampler.cc)
foreach(tests tests_data tests_command)
  if(TARGET ${tests})
    add_dependencies(${tests} plugin_sampler)
  endif()
endforeach()

# Libraries that tests of the command preload: a disk whose fsync is slow, calls of the system that fail, and a record of writes. And
# one that the command loads: a LibTorch of another version.
add_library(plugin_disk MODULE tests/command/plugin_disk.cc)
add_library(plugin_faults MODULE tests/command/faults/plugin_faults.cc)
add_library(plugin_writes MODULE tests/command/faults/plugin_writes.cc)
add_library(plugin_torch MODULE tests/command/interface/plugin_torch.cc)
foreach(library plugin_disk plugin_faults plugin_writes plugin_torch)
  target_include_directories(${library} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${library} PRIVATE ${CMAKE_DL_LIBS})
  if(TARGET tests_command)
    add_dependencies(tests_command ${library})
  endif()
endforeach()

# Trains the SentencePiece model of the tokenizer's test in a process of its own (reason: CMakeLists.txt, perigee_sentencepiece).
find_library(sentencepiece_train sentencepiece_train NO_CACHE)
if(sentencepiece_train)
  add_executable(make_sentencepiece tests/data/make_sentencepiece.cc)
  target_link_libraries(make_sentencepiece PRIVATE ${sentencepiece_train} dep::sentencepiece)
endif()
foreach(tests tests_data tests_text)
  if(TARGET ${tests} AND TARGET make_sentencepiece)
    add_dependencies(${tests} make_sentencepiece)
  endif()
endforeach()
if(TARGET tests_text)
  add_dependencies(tests_text perigee_tokenizers perigee_sentencepiece perigee_compressed)
endif()

# Builds the plugin that `perigee new` copies against the build folder, and captures it with the command.
if(TARGET perigee AND TARGET perigee_torch)
  add_test(NAME "command/the plugin of a new folder builds and is captured"
    COMMAND ${CMAKE_CTEST_COMMAND} --build-and-test ${PROJECT_SOURCE_DIR}/runtime/new ${PROJECT_BINARY_DIR}/using/new
      --build-generator ${CMAKE_GENERATOR} --build-makeprogram ${CMAKE_MAKE_PROGRAM}
      --build-options -DCMAKE_PREFIX_PATH=${PROJECT_BINARY_DIR} "-DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}"
      --test-command ${PROJECT_BINARY_DIR}/perigee graph ${PROJECT_SOURCE_DIR}/tests/command/plugin.toml
        --set model.file=${PROJECT_BINARY_DIR}/using/new/model.so)
  set_tests_properties("command/the plugin of a new folder builds and is captured" PROPERTIES TIMEOUT 300)
endif()

# Installs into the build folder, then builds and runs projects that use the installed copy.
if(TARGET perigee_torch)
  set(prefix ${PROJECT_BINARY_DIR}/installed)
  add_test(NAME "install/the build installs" COMMAND ${CMAKE_COMMAND} --install ${PROJECT_BINARY_DIR} --prefix ${prefix})
  set_tests_properties("install/the build installs" PROPERTIES FIXTURES_SETUP installed TIMEOUT 120)
  foreach(project tests/install tools/embed)
    if(NOT EXISTS ${PROJECT_SOURCE_DIR}/${project}/CMakeLists.txt)
      continue()
    endif()
    add_test(NAME "install/${project} builds against the installed copy and runs"
      COMMAND ${CMAKE_CTEST_COMMAND} --build-and-test ${PROJECT_SOURCE_DIR}/${project} ${PROJECT_BINARY_DIR}/using/${project}
        --build-generator ${CMAKE_GENERATOR} --build-makeprogram ${CMAKE_MAKE_PROGRAM}
        --build-options -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE}
          "-DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}"
        --test-command ${PROJECT_BINARY_DIR}/using/${project}/embedder)
    set_tests_properties("install/${project} builds against the installed copy and runs"
      PROPERTIES FIXTURES_REQUIRED installed TIMEOUT 300)
  endforeach()
endif()
