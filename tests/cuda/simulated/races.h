// A detector of races on the simulated machine: two accesses to the same bytes, one of them a
// write, that no stream, event or wait of the host orders. It compares vector clocks (Fidge 1988,
// Mattern 1989), so it finds a race whatever the order in which the two ran here.
//
// It sees copies, fills and NCCL's calls by itself; the work of tests and accesses of the host are
// declared below. Host memory that an upload (cudaMemcpyHostToDevice) reads must not change until the
// host has waited for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "cuda/calls.h"

namespace perigee::cuda::simulated {

struct Bytes {
  const void* begin = nullptr;
  size_t size = 0;
};

inline Bytes bytes_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.nbytes()};
}

struct Accesses {
  std::vector<Bytes> reads, writes;
};

// Submits work with its accesses to a stream.
void submit(cudaStream_t stream, std::function<void()> work, const Accesses& accesses);

// The host accesses memory now.
void host_accesses(const Accesses& accesses);

// Returns the races since restart(), each once: "a copy writes what work of the test reads".
std::vector<std::string> races();

}  // namespace perigee::cuda::simulated
