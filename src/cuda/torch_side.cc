#include "cuda/torch_side.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/MemPool.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "cuda/handles.h"
#include "cuda/torch_allocator.h"

namespace perigee::cuda {
namespace {

using c10::cuda::CUDACachingAllocator::getDeviceStats;

c10::DeviceIndex index_of(int device) { return static_cast<c10::DeviceIndex>(device); }

// CUDAStreamGuard ends the process where CUDA fails while it is dropped.
struct Direction {
  Direction(int device, cudaStream_t stream)
      : guard(device), before(c10::cuda::getCurrentCUDAStream(index_of(device))) {
    c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(stream, index_of(device)));
  }
  ~Direction() { c10::cuda::setCurrentCUDAStream(before); }  // calls nothing of CUDA

  DeviceGuard guard;
  c10::cuda::CUDAStream before;
};

}  // namespace

void start_torch() {
  at::globalContext().lazyInitDevice(at::kCUDA);
  install_torch_allocator();
}

void allow_tf32(bool allowed) {
  at::globalContext().setAllowTF32CuDNN(allowed);  // true is cuDNN's default
  at::globalContext().setAllowTF32CuBLAS(allowed);
}

std::shared_ptr<void> direct_to(int device, cudaStream_t stream) {
  return std::make_shared<Direction>(device, stream);
}

void make_workspaces() {
  thread_local std::vector<c10::cuda::CUDAStream> made;
  const auto own = c10::cuda::getCurrentCUDAStream();
  if (std::find(made.begin(), made.end(), own) != made.end()) return;
  at::cuda::getCurrentCUDABlasHandle();
  at::cuda::getCUDABlasLtWorkspace();
  made.push_back(own);
}

BlasLt blas_lt() {
  return {at::cuda::getCurrentCUDABlasLtHandle(), at::cuda::getCUDABlasLtWorkspace(),
          at::cuda::getCUDABlasLtWorkspaceSize()};
}

cudaStream_t current_stream(int device) {
  return c10::cuda::getCurrentCUDAStream(index_of(device)).stream();
}

cudaStream_t current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

CapturePool::CapturePool(int device)
    : device_(device), id_(at::cuda::MemPool::graph_pool_handle(/*is_user_created=*/false)) {}

CapturePool::~CapturePool() {
  try {
    close();
    if (used_) c10::cuda::CUDACachingAllocator::releasePool(index_of(device_), id_);
  } catch (const std::exception&) {
    // The GPU has failed, and its memory is gone.
  }
}

void CapturePool::open() {
  c10::cuda::CUDACachingAllocator::beginAllocateToPool(
      index_of(device_), id_, [](cudaStream_t stream) {
        auto status = cudaStreamCaptureStatusNone;
        return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
               status == cudaStreamCaptureStatusActive;
      });
  open_ = used_ = true;
}

void CapturePool::close() {
  if (!std::exchange(open_, false)) return;
  c10::cuda::CUDACachingAllocator::endAllocateToPool(index_of(device_), id_);
}

int64_t reset_tensor_peak(int device) {
  c10::cuda::CUDACachingAllocator::resetPeakStats(index_of(device));
  constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return getDeviceStats(index_of(device)).allocated_bytes[all].current;
}

int64_t tensor_peak(int device) {
  constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return getDeviceStats(index_of(device)).allocated_bytes[all].peak;
}

int64_t cached_memory(int device) {
  constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return getDeviceStats(index_of(device)).reserved_bytes[all].current;
}

double product_of_ones(int64_t n) {
  const auto ones = at::ones({n, n}, at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA));
  return ones.mm(ones)[n - 1][n - 1].item<double>();
}

void free_cached_memory() { c10::cuda::CUDACachingAllocator::emptyCache(); }

}  // namespace perigee::cuda
