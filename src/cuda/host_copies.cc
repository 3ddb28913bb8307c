#include "cuda/host_copies.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/fail.h"
#include "cuda/check.h"

namespace perigee::cuda {
namespace {

class Copy : public exec::Work {
 public:
  Copy(CudaDevice& device, at::Tensor to, at::Tensor from)
      : device_(device),
        to_(std::move(to)),
        from_(std::move(from)),
        begin_(device.index(), /*timed=*/true),
        end_(device.index(), /*timed=*/true) {}

  void start(cudaStream_t stream) {
    const DeviceGuard guard(device_.index());
    Event before(device_.index());
    before.record(device_.stream());
    before.block(stream);
    begin_.record(stream);
    PERIGEE_CUDA(cudaMemcpyAsync, to_.mutable_data_ptr(), from_.const_data_ptr(), to_.nbytes(),
                 cudaMemcpyDefault, stream);
    end_.record(stream);
  }

  void wait() override { device_.follow(end_); }

  void settle() override {
    began = device_.clock().time(begin_);
    ended = device_.clock().time(end_);
  }

 private:
  CudaDevice& device_;
  at::Tensor to_, from_;
  Event begin_, end_;
};

}  // namespace

std::shared_ptr<std::byte> pinned_memory(int64_t bytes, const PinnedUse& use) {
  const auto wanted = static_cast<size_t>(std::max<int64_t>(bytes, 64));
  void* memory = nullptr;
  const auto result = calls().cudaHostAlloc(&memory, wanted, cudaHostAllocDefault);
  if (result == cudaErrorMemoryAllocation) {
    calls().cudaGetLastError();
    fail_run("exec",
             "{} needs {} bytes of pinned memory of the host, but it does not give them: {}, or "
             "raise the limit of locked memory (ulimit -l)",
             use.purpose, bytes, use.remedy);
  }
  check(result, "cudaHostAlloc");
  std::memset(memory, 0, wanted);
  return {static_cast<std::byte*>(memory), [](std::byte* p) { calls().cudaFreeHost(p); }};
}

HostCopies::HostCopies(CudaDevice& device)
    : device_(device), stream_(device.index(), Stream::Priority::high) {}

std::shared_ptr<exec::Work> HostCopies::start(const at::Tensor& to, const at::Tensor& from) {
  if (to.nbytes() != from.nbytes() || !to.is_contiguous() || !from.is_contiguous()) {
    fail_run("exec", "a copy is between contiguous tensors of one size, but got {} and {} bytes",
             to.nbytes(), from.nbytes());
  }
  auto copy = std::make_shared<Copy>(device_, to, from);
  copy->start(stream_.get());
  return copy;
}

}  // namespace perigee::cuda
