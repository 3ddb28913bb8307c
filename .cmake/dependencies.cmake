# Perigee's dependencies, as imported targets dep::NAME and torch::cpu. They are found by header and library, not by package files,
# so that the same lines find those of the system and of an unpacked bundle (CMAKE_PREFIX_PATH).

# A bundle's libraries are in folders unknown to the loader. DT_RPATH, unlike RUNPATH, also applies to dependencies of libraries.
set(bundle ${PROJECT_SOURCE_DIR}/.deps/prefix/usr)
if(EXISTS ${bundle})
  list(PREPEND CMAKE_PREFIX_PATH ${bundle})
  set(bundle_lib ${bundle}/lib/${CMAKE_LIBRARY_ARCHITECTURE})
  set(CMAKE_BUILD_RPATH ${bundle_lib} ${bundle_lib}/lapack ${bundle_lib}/blas)
  string(REPLACE ";" ":" bundle_rpath ";${CMAKE_BUILD_RPATH}")
  add_link_options(LINKER:--disable-new-dtags)
endif()

# perigee_dependency(NAME HEADER file [LIBRARIES name...] [SUFFIX folder] [DEFINES name...] [OPTIONAL])
function(perigee_dependency name)
  cmake_parse_arguments(arg "OPTIONAL" "HEADER;SUFFIX" "LIBRARIES;DEFINES" ${ARGN})
  find_path(${name}_INCLUDE ${arg_HEADER} PATH_SUFFIXES ${arg_SUFFIX} NO_CACHE)
  if(NOT ${name}_INCLUDE AND arg_OPTIONAL)
    return()
  endif()
  add_library(dep::${name} INTERFACE IMPORTED)
  if(NOT ${name}_INCLUDE)
    message(FATAL_ERROR "[build] ${arg_HEADER} is needed, but not found: run scripts/setup")
  endif()
  target_include_directories(dep::${name} SYSTEM INTERFACE ${${name}_INCLUDE})
  target_compile_definitions(dep::${name} INTERFACE ${arg_DEFINES})
  foreach(library IN LISTS arg_LIBRARIES)
    find_library(${name}_${library} ${library} PATH_SUFFIXES lapack blas NO_CACHE)
    if(NOT ${name}_${library})
      message(FATAL_ERROR "[build] lib${library} is needed, but not found: run scripts/setup")
    endif()
    target_link_libraries(dep::${name} INTERFACE ${${name}_${library}})
  endforeach()
  set(${name}_INCLUDE ${${name}_INCLUDE} PARENT_SCOPE)
endfunction()

perigee_dependency(fmt HEADER fmt/format.h LIBRARIES fmt)
perigee_dependency(spdlog HEADER spdlog/spdlog.h LIBRARIES spdlog
  DEFINES SPDLOG_SHARED_LIB SPDLOG_COMPILED_LIB SPDLOG_FMT_EXTERNAL)
perigee_dependency(json HEADER nlohmann/json.hpp)
perigee_dependency(toml HEADER toml++/toml.h)
perigee_dependency(cli11 HEADER CLI/CLI.hpp)
perigee_dependency(mimalloc HEADER mimalloc.h LIBRARIES mimalloc)
perigee_dependency(xxhash HEADER xxhash.h)
perigee_dependency(luajit HEADER luajit.h SUFFIX luajit-2.1 LIBRARIES luajit-5.1)
perigee_dependency(yaml HEADER yaml.h LIBRARIES yaml)
perigee_dependency(sqlite HEADER sqlite3.h LIBRARIES sqlite3)
perigee_dependency(cbc HEADER CbcModel.hpp SUFFIX coin LIBRARIES CbcSolver Cbc Cgl OsiClp Clp Osi CoinUtils)
perigee_dependency(pcre2 HEADER pcre2.h LIBRARIES pcre2-8)
perigee_dependency(utf8proc HEADER utf8proc.h LIBRARIES utf8proc)
perigee_dependency(sentencepiece HEADER sentencepiece_processor.h LIBRARIES sentencepiece)
perigee_dependency(zlib HEADER zlib.h LIBRARIES z)
perigee_dependency(zstd HEADER zstd.h LIBRARIES zstd)
# OpenSSL, for the HMAC of the job's store. Some of its headers are in the folder of the processor's architecture.
perigee_dependency(crypto HEADER openssl/hmac.h LIBRARIES crypto)
find_path(crypto_configuration_INCLUDE openssl/opensslconf.h NO_CACHE)
target_include_directories(dep::crypto SYSTEM INTERFACE ${crypto_configuration_INCLUDE})
# Signed requests to S3 (src/checkpoint/s3).
perigee_dependency(curl HEADER curl/curl.h LIBRARIES curl)
# The server of `perigee watch` (src/view/watch).
perigee_dependency(httplib HEADER httplib.h LIBRARIES cpp-httplib  # with the definitions that its library was built with
  DEFINES CPPHTTPLIB_OPENSSL_SUPPORT CPPHTTPLIB_ZLIB_SUPPORT CPPHTTPLIB_BROTLI_SUPPORT)
# Declarations only: the code of Gloo is in libtorch_cpu.
perigee_dependency(gloo HEADER gloo/context.h)
# Of tests and benchmarks, which are left out without them (scripts/setup --test).
perigee_dependency(benchmark HEADER benchmark/benchmark.h LIBRARIES benchmark OPTIONAL)
perigee_dependency(rapidcheck HEADER rapidcheck.h LIBRARIES rapidcheck OPTIONAL)

# LibTorch without its package file, which requires nvcc and links libtorch_cuda into everything.
set(torch_header ${PERIGEE_TORCH}/include/torch/headeronly/version.h)
if(NOT EXISTS ${torch_header} OR NOT EXISTS ${PERIGEE_TORCH}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "[build] LibTorch is needed, but ${PERIGEE_TORCH} has none: run scripts/setup")
endif()
file(STRINGS ${torch_header} torch_version REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE "[^0-9]+" "." torch_version "${torch_version}")
string(REGEX REPLACE "^\\." "" torch_version "${torch_version}")
if(NOT torch_version STREQUAL "2.11.0")
  message(FATAL_ERROR "[build] LibTorch must be 2.11.0, but ${PERIGEE_TORCH} has ${torch_version}")
endif()
# LibTorch contains a later fmt, which breaks spdlog and core's headers: a folder with only the system's fmt precedes it.
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/fmt_first)
file(CREATE_LINK ${fmt_INCLUDE}/fmt ${PROJECT_BINARY_DIR}/fmt_first/fmt SYMBOLIC)
add_library(torch::cpu INTERFACE IMPORTED)
target_include_directories(torch::cpu INTERFACE ${PROJECT_BINARY_DIR}/fmt_first)
target_include_directories(torch::cpu SYSTEM INTERFACE
  ${PERIGEE_TORCH}/include ${PERIGEE_TORCH}/include/torch/csrc/api/include)
target_compile_definitions(torch::cpu INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
target_link_libraries(torch::cpu INTERFACE ${PERIGEE_TORCH}/lib/libtorch_cpu.so ${PERIGEE_TORCH}/lib/libc10.so)
target_link_options(torch::cpu INTERFACE LINKER:-rpath-link,${PERIGEE_TORCH}/../nvidia/cu13/lib)
