// The executor's own work on a device that runs it later. A CPU runs an op within the call, and a
// GPU's kernels submit themselves; tests have devices that run any op later, in each order that
// streams and events allow (tests/cuda/simulated/programs).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "compile/program.h"

namespace perigee::exec {

// An instruction in one run of its section. `bases`: addresses of the run's frames.
struct Running {
  const compile::Program& program;
  const compile::Section& section;
  const compile::Instruction& instruction;
  int64_t microbatch = 0;
  std::span<std::byte* const> bases;
};

class Submitter {
 public:
  virtual ~Submitter() = default;

  // This thread's calls until the next begin() are the instruction's: submit() for an op, else
  // Device::upload, Device::copy, Group::transfer or Work::wait.
  virtual void begin(const Running& running) = 0;

  // Submits the op of the instruction to the compute stream. What `run` refers to lives until
  // Device::synchronize has returned, which throws the exception of a `run`; in a recorded step
  // (recorder.h) `run` is called by each launch, and its objects live as long as the step.
  virtual void submit(std::function<void()> run) = 0;

  // Submits the fill of a tensor of one element to the compute stream, before the step begins.
  virtual void fill(const at::Tensor& target, double value) = 0;

  // Returns when the host may read the tensor: all work of the compute stream has run.
  virtual void finish(const at::Tensor& read) = 0;
};

}  // namespace perigee::exec
