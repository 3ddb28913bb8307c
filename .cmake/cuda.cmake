# The CUDA plugin is built if a CUDA 13 toolkit and LibTorch's CUDA libraries are found (scripts/setup fetches the latter).
find_program(PERIGEE_NVCC nvcc HINTS ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
set(PERIGEE_CUDA OFF)
if(PERIGEE_NVCC AND EXISTS ${PERIGEE_TORCH}/lib/libtorch_cuda.so)
  set(PERIGEE_CUDA ON)
endif()
if(NOT PERIGEE_CUDA)
  message(STATUS "CUDA part: left out")
  return()
endif()

set(CMAKE_CUDA_COMPILER ${PERIGEE_NVCC})
set(CMAKE_CUDA_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CUDA_FLAGS_DEV "-O1 -DNDEBUG")
# A100, H100, and later GPUs through PTX.
set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
enable_language(CUDA)
# CMake 3.25 does not know that nvcc supports C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA_STANDARD 20)

get_filename_component(toolkit ${PERIGEE_NVCC} REALPATH)
get_filename_component(toolkit ${toolkit}/../.. ABSOLUTE)
# The libraries beside LibTorch, which may be a link. LibTorch's NCCL precedes the toolkit's.
get_filename_component(nvidia ${PERIGEE_TORCH} REALPATH)
get_filename_component(nvidia ${nvidia}/../nvidia ABSOLUTE)
find_path(nccl_INCLUDE nccl.h HINTS ${nvidia}/nccl/include ${toolkit}/include NO_CACHE)
find_library(nccl_LIBRARY NAMES libnccl.so.2 nccl HINTS ${nvidia}/nccl/lib ${toolkit}/lib64 NO_CACHE)
find_library(cudart_LIBRARY NAMES cudart libcudart.so.13 HINTS ${toolkit}/lib64 ${nvidia}/cu13/lib NO_CACHE)
find_library(cublasLt_LIBRARY NAMES cublasLt libcublasLt.so.13 HINTS ${toolkit}/lib64 ${nvidia}/cu13/lib NO_CACHE)
foreach(part nccl_INCLUDE nccl_LIBRARY cudart_LIBRARY cublasLt_LIBRARY)
  if(NOT ${part})
    message(FATAL_ERROR "[build] the CUDA part needs ${part}, but it is neither in ${toolkit} nor in ${nvidia}: "
      "install it, or configure with -DPERIGEE_NVCC=OFF to leave the CUDA part out")
  endif()
endforeach()

add_library(torch::cuda INTERFACE IMPORTED)
target_include_directories(torch::cuda SYSTEM INTERFACE ${toolkit}/include ${nccl_INCLUDE})
# Kernels register themselves when libtorch_cuda is loaded, so it is linked even without a used symbol. Its dependencies are in the
# toolkit and beside LibTorch: DT_RPATH, unlike RUNPATH, also applies to dependencies of libraries.
target_link_libraries(torch::cuda INTERFACE torch::cpu
  -Wl,--push-state,--no-as-needed ${PERIGEE_TORCH}/lib/libtorch_cuda.so ${PERIGEE_TORCH}/lib/libc10_cuda.so -Wl,--pop-state
  ${nccl_LIBRARY} ${cudart_LIBRARY} ${cublasLt_LIBRARY})
set(cuda_folders ${toolkit}/lib64 ${nvidia}/cu13/lib ${nvidia}/cusparselt/lib ${nvidia}/nvshmem/lib ${nvidia}/nccl/lib
  ${nvidia}/cudnn/lib)
target_link_options(torch::cuda INTERFACE LINKER:--disable-new-dtags
  "LINKER:-rpath-link,$<JOIN:${cuda_folders},:>")
message(STATUS "CUDA part: ${toolkit}, ${nccl_LIBRARY}")
