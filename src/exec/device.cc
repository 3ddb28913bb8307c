#include "exec/device.h"

#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <fmt/format.h>

#include "exec/comm/communicator.h"
#include "exec/kernels/kernels.h"
#include "exec/memory/allocator.h"
#include "exec/memory/dry_run.h"
#include "exec/memory/host_copies.h"
#include "exec/memory/shared_memory.h"

namespace perigee::exec {
namespace {

class CpuDevice : public Device {
 public:
  explicit CpuDevice(std::shared_ptr<SharedMemory> shared = nullptr) : shared_(std::move(shared)) {}
  at::Device place() const override { return at::kCPU; }
  std::string kind() const override { return fmt::format("cpu {}", at::get_cpu_capability()); }
  Kernel kernel(const Op& op) override { return cpu_kernel(op); }
  std::shared_ptr<std::byte> allocate(int64_t bytes, bool communicates) override {
    return allocate_frames(bytes, communicates ? shared_.get() : nullptr);
  }
  std::shared_ptr<std::byte> allocate_host(int64_t bytes) override {
    return allocate_host_frames(bytes);
  }
  std::shared_ptr<Work> copy(const at::Tensor& to, const at::Tensor& from, bool to_host) override {
    return (to_host ? out_ : in_).start(to, from);
  }
  bool plans_memory() const override { return true; }
  std::optional<compile::OpTrace> dry_run(const compile::OpInstance& instance) override {
    return record_trace(instance);
  }
  // Counts the whole process, also where it runs several ranks.
  void reset_peak() override {
    exec::reset_peak();
    others_ = memory_count().others;
  }
  int64_t peak() const override { return memory_count().peak - others_; }
  std::shared_ptr<void> enter() override { return nullptr; }
  void upload(const at::Tensor& target, const at::Tensor& source) override { target.copy_(source); }
  void synchronize(const std::function<void()>&) override {
    out_.finish();
    in_.finish();
  }
  int64_t mark() override { return now(); }
  int64_t time(int64_t mark) override { return mark; }

 private:
  std::shared_ptr<SharedMemory> shared_;
  HostCopies out_, in_;
  int64_t others_ = 0;
};

}  // namespace

std::shared_ptr<Device> cpu_device() { return std::make_shared<CpuDevice>(); }

std::shared_ptr<Device> cpu_device(std::shared_ptr<SharedMemory> memory) {
  return std::make_shared<CpuDevice>(std::move(memory));
}

}  // namespace perigee::exec
