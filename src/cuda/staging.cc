#include "cuda/staging.h"

#include <ATen/ATen.h>

#include "cuda/check.h"

namespace perigee::cuda {

Staging::Buffer::Buffer(int device, size_t n) : bytes(n), sent(device) {
  const DeviceGuard guard(device);
  PERIGEE_CUDA(cudaHostAlloc, &memory, n, cudaHostAllocDefault);
}

Staging::Buffer::~Buffer() { calls().cudaFreeHost(memory); }

Staging::Buffer& Staging::free_buffer(size_t bytes) {
  for (auto& buffer : buffers_) {
    if (buffer->bytes >= bytes && buffer->sent.passed()) return *buffer;
  }
  return *buffers_.emplace_back(std::make_unique<Buffer>(device_, bytes));
}

void Staging::upload(const at::Tensor& target, const at::Tensor& source, cudaStream_t stream) {
  if (source.numel() == 0) return;
  if (!source.device().is_cpu() || !target.is_contiguous()) {
    target.copy_(source);
    return;
  }
  const size_t bytes = source.nbytes();
  auto& buffer = free_buffer(bytes);
  // The source need not be contiguous.
  at::from_blob(buffer.memory, source.sizes(), source.options()).copy_(source);
  PERIGEE_CUDA(cudaMemcpyAsync, target.mutable_data_ptr(), buffer.memory, bytes,
               cudaMemcpyHostToDevice, stream);
  buffer.sent.record(stream);
}

}  // namespace perigee::cuda
