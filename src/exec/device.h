// The device that a rank computes on: the CPU (built in), or a GPU (a plugin, exec/cuda.h). A
// device belongs to one rank and runs work in the order in which it is submitted, on one stream.
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

class Recorder;
class ServedAllocations;
class Submitter;
class Work;

class Device {
 public:
  virtual ~Device() = default;

  // Returns LibTorch's device of its tensors.
  virtual at::Device place() const = 0;

  // Returns a text that identifies hardware and choice of kernels. Measurements depend on it and on
  // the versions of LibTorch and Perigee.
  virtual std::string kind() const = 0;

  // Returns the kernel for any op but collectives. Throws Error for an op that has none.
  virtual Kernel kernel(const Op& op) = 0;

  // Returns zeroed memory, 64-byte aligned, freed with the last copy of the pointer.
  // `communicates`: collectives read and write it. Throws Error when there is not enough.
  virtual std::shared_ptr<std::byte> allocate(int64_t bytes, bool communicates) = 0;

  // Returns zeroed host memory for copies to and from the device (with a GPU: pinned). Throws Error
  // when there is not enough.
  virtual std::shared_ptr<std::byte> allocate_host(int64_t bytes) = 0;

  // Starts a copy between device and host of two contiguous tensors with equally many bytes. It
  // starts after all work submitted before it and runs concurrently with work submitted after it;
  // copies in one direction run one after the other.
  virtual std::shared_ptr<Work> copy(const at::Tensor& to, const at::Tensor& from,
                                     bool to_host) = 0;

  // Returns whether PlannedAllocations serves the allocations of its kernels: all of them, as
  // recorded. Otherwise kernels may allocate differently, and results that are elsewhere are copied
  // to their planned addresses.
  virtual bool plans_memory() const = 0;

  // Without planned memory: asks `allocations` for the addresses of this thread's allocations on
  // the device, until it is called with nullptr. The default never asks.
  virtual void serve(ServedAllocations* allocations) { static_cast<void>(allocations); }

  // Runs the op on zeros and returns its allocations and the strides of its results. Returns
  // nothing where a trace cannot describe the op. Throws Error when the op fails.
  virtual std::optional<compile::OpTrace> dry_run(const compile::OpInstance& instance) = 0;

  // peak() returns the largest number of bytes of its memory in use since reset_peak(), without
  // those that were in use outside of programs at reset_peak().
  virtual void reset_peak() = 0;
  virtual int64_t peak() const = 0;

  // Directs this thread's work to the device's stream for the lifetime of the returned guard.
  virtual std::shared_ptr<void> enter() = 0;

  // Returns the device's way to run the executor's work later, or nullptr: ops run or submit
  // themselves within the call.
  virtual Submitter* submitter() { return nullptr; }

  // Returns the device's way to record steps, or nullptr where it has none.
  virtual Recorder* recorder() { return nullptr; }

  // Copies a host tensor to `target`. The caller may write to `source` after this returns.
  virtual void upload(const at::Tensor& target, const at::Tensor& source) = 0;

  // Waits until all submitted work has run. Calls `check` repeatedly meanwhile; an exception from
  // `check` ends the wait. Throws Error for invalid operands that kernels have reported.
  virtual void synchronize(const std::function<void()>& check) = 0;

  // mark() records a point in the submitted work; time() returns when the device reached it, in
  // nanoseconds of now(). Valid after the synchronize() that follows mark(), until the next one.
  virtual int64_t mark() = 0;
  virtual int64_t time(int64_t mark) = 0;
};

// The CPU, for any number of ranks and threads.
std::shared_ptr<Device> cpu_device();

}  // namespace perigee::exec
