// Pinned host memory for asynchronous uploads of batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "cuda/handles.h"

namespace perigee::cuda {

class Staging {
 public:
  explicit Staging(int device) : device_(device) {}

  // Copies a host tensor to `target` on the stream. The caller may write to `source` after
  // this returns.
  void upload(const at::Tensor& target, const at::Tensor& source, cudaStream_t stream);

 private:
  // Allocated by CUDA directly: at::pin_memory throws while the capture device is registered.
  struct Buffer {
    Buffer(int device, size_t bytes);
    ~Buffer();
    Buffer(const Buffer&) = delete;
    void* memory = nullptr;
    size_t bytes = 0;
    Event sent;
  };
  Buffer& free_buffer(size_t bytes);

  int device_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

}  // namespace perigee::cuda
