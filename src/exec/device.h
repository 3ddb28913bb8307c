// What a rank computes on: the CPU, built in, or a GPU, whose part is a plugin (exec/cuda.h). A
// device belongs to one rank; its work is in the order in which it is given, on one stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "compile/trace.h"
#include "exec/ops/op.h"

namespace perigee::exec {

class Work;

class Device {
 public:
  virtual ~Device() = default;

  // Where its tensors lie.
  virtual at::Device place() const = 0;

  // Returns the hardware and the choice of kernels: what a measurement on it depends on, beside the
  // versions of LibTorch and Perigee.
  virtual std::string kind() const = 0;

  // Returns the kernel for any op but collectives. Throws Error for an op that has none.
  virtual Kernel kernel(const Op& op) = 0;

  // Returns zeroed memory, 64-byte aligned, that goes with the last copy of the pointer.
  // `communicates`: collectives read and write it. Throws Error when there is not enough.
  virtual std::shared_ptr<std::byte> allocate(int64_t bytes, bool communicates) = 0;

  // Allocates host memory that suits copies to and from the device (pinned memory on a GPU).
  virtual std::shared_ptr<std::byte> allocate_host(int64_t bytes) = 0;

  // Starts a copy of bytes between the device and its host, two contiguous tensors of one size. It
  // waits for the work that the device was given before and runs concurrently with work that is given after it; copies the
  // same way run one after the other.
  virtual std::shared_ptr<Work> copy(const at::Tensor& to, const at::Tensor& from,
                                     bool to_host) = 0;

  // Whether PlannedAllocations serves what its kernels allocate. Where not, they allocate freely
  // and their results are copied to their places.
  virtual bool plans_memory() const = 0;

  // Runs the op once on zeros and returns what it allocates and how its results lie; where the
  // device plans no memory, its results alone (an incomplete trace). Returns nothing where a trace
  // cannot tell. Throws Error when the op fails.
  virtual std::optional<compile::OpTrace> dry_run(const compile::OpInstance& instance) = 0;

  // The most bytes of its memory held at once since reset_peak(), without what the host held then.
  virtual void reset_peak() = 0;
  virtual int64_t peak() const = 0;

  // While what this returns lives, this thread's work goes to the device's stream.
  virtual std::shared_ptr<void> enter() = 0;

  // Copies a host tensor to `target`; `source` may change once this returns.
  virtual void upload(const at::Tensor& target, const at::Tensor& source) = 0;

  // Returns when all that was given has run. Calls `check` from time to time while it waits; what
  // that throws ends the wait. Throws Error for what kernels found wrong with their operands.
  virtual void synchronize(const std::function<void()>& check) = 0;

  // A moment between what was given before and after, and its time in nanoseconds of now(), known
  // once the device was synchronised (only for moments since the synchronisation before).
  virtual int64_t mark() = 0;
  virtual int64_t time(int64_t mark) = 0;
};

// The CPU, for any number of ranks and threads.
std::shared_ptr<Device> cpu_device();

}  // namespace perigee::exec
