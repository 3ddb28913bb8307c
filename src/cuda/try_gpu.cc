#include "cuda/try_gpu.h"

#include <ATen/ATen.h>

#include <vector>

#include "cuda/check.h"
#include "cuda/device.h"
#include "cuda/kernels/kernels.h"
#include "cuda/nccl/lane.h"
#include "cuda/torch_side.h"
#include "exec/comm/communicator.h"

namespace perigee::cuda {
namespace {

constexpr int64_t kNumbers = 1000;
constexpr int64_t kBytes = kNumbers * static_cast<int64_t>(sizeof(float));

// Returns the numbers at `memory` of the GPU, by way of pinned memory.
std::vector<float> to_host(CudaDevice& device, const void* memory) {
  const auto pinned = device.allocate_host(kBytes);
  PERIGEE_CUDA(cudaMemcpyAsync, pinned.get(), memory, kBytes, cudaMemcpyDeviceToHost,
               device.stream());
  device.synchronize({});
  const auto* numbers = reinterpret_cast<const float*>(pinned.get());
  return {numbers, numbers + kNumbers};
}

// Returns the name of the first test whose result is wrong, or "".
std::string wrong_result(CudaDevice& device) {
  const auto entered = device.enter();
  const auto memory = device.allocate(kBytes, /*communicates=*/true);
  fill_random(memory.get(), Element::float32, {.kind = Drawing::integer, .low = 5, .range = 7},
              {.seed = 1, .numel = kNumbers, .run = kNumbers}, device.stream());
  check(calls().cudaGetLastError(), "a kernel");
  const auto drawn = to_host(device, memory.get());
  for (int64_t i = 0; i < kNumbers; ++i) {
    const auto words = exec::philox_block(1, 0, 0, static_cast<uint64_t>(i) / 4);
    if (drawn[i] != static_cast<float>(exec::integer_of(words.w[i % 4], 5, 7))) return "a kernel";
  }

  const auto other = device.allocate(kBytes, false);
  const auto pinned = device.allocate_host(kBytes);
  std::copy(drawn.rbegin(), drawn.rend(), reinterpret_cast<float*>(pinned.get()));
  PERIGEE_CUDA(cudaMemcpyAsync, other.get(), pinned.get(), kBytes, cudaMemcpyHostToDevice,
               device.stream());
  if (to_host(device, other.get()) != std::vector<float>(drawn.rbegin(), drawn.rend())) {
    return "a copy";
  }

  constexpr int64_t kSize = 64;
  if (product_of_ones(kSize) != kSize) return "a matrix product";

  Lane lane({.device = device.index(), .store = nullptr, .key = "", .index = 0, .size = 1});
  Event ready(device.index()), done(device.index());
  ready.record(device.stream());
  ready.block(lane.stream());
  lane.submit([&] {
    check_nccl(calls().ncclAllReduce(memory.get(), memory.get(), kNumbers, ncclFloat32, ncclSum,
                                     lane.communicator(), lane.stream()),
               "ncclAllReduce", lane.communicator());
  });
  done.record(lane.stream());
  device.follow(done);
  return to_host(device, memory.get()) == drawn ? "" : "a sum by NCCL";
}

}  // namespace

std::string try_gpu(int index) {
  try {
    const auto wrong = wrong_result(*make_device({.index = index}));
    return wrong.empty() ? "" : wrong + " gives a wrong result";
  } catch (const std::exception& error) {
    return exec::first_line(error);
  }
}

}  // namespace perigee::cuda
