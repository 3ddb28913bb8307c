// Runs one rank's program, step by step. It decides nothing: what runs in which order, where every
// byte lies and when a collective is waited for stands in the program.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compile/program.h"
#include "compile/timeline.h"
#include "exec/comm/communicator.h"
#include "exec/device.h"
#include "mesh/mesh.h"

namespace perigee::exec {

class Executor;

struct ExecutorOptions {
  int threads = 1;                 // LibTorch's, of this rank
  uint64_t seed = 0;               // of all random ops
  std::shared_ptr<Device> device;  // nullptr: the CPU
  // Has the parameters and buffers that the program borrows (StepSpec::borrow_weights), in the same
  // parts; must live as long as this executor.
  const Executor* lender = nullptr;
};

// What the host brings to one step.
struct StepInputs {
  int64_t step = 1;                       // counts from 1; also the scalar "step"
  std::map<std::string, double> scalars;  // "lr.0", ...
  // Returns a batch's tensor for one microbatch (of the rank's copy of the model, where there are
  // several): the global one, of which the rank takes its part, or that part itself.
  std::function<at::Tensor(const std::string& name, int64_t microbatch)> data;
};

// Times are nanoseconds of now().
using compile::Interval;

class Executor {
 public:
  // Allocates the frames, fills constants and finds a kernel for every instruction. The
  // communicator (kept by reference) is this rank's; groups are those of the mesh. Throws Error
  // naming op and scope for what cannot be run.
  Executor(compile::Program program, Communicator& communicator, const mesh::Mesh& mesh,
           ExecutorOptions options = {});
  ~Executor();
  Executor(Executor&&) noexcept;

  // Runs one optimizer step. Throws Error naming rank, op, scope, section and microbatch; the other
  // ranks are then told.
  void run(const StepInputs& inputs);

  // Returns the memory of a parameter, buffer, state or result between steps: this rank's part.
  // Writing to it changes the program's. It lies on the rank's device. Throws Error with the
  // nearest name for one that the program lacks, and for one that it holds in several pieces.
  at::Tensor tensor(compile::Binding::Kind kind, const std::string& name) const;
  // The same for one of program().bindings.
  at::Tensor tensor(const compile::Binding& binding) const;
  // Names of that kind in the program's order, each once.
  std::vector<std::string> names(compile::Binding::Kind kind) const;

  const compile::Program& program() const;
  int64_t frame_bytes() const;

  // Records intervals from now on (or no more); forgets those before.
  void record(bool on);
  const std::vector<Interval>& intervals() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perigee::exec
