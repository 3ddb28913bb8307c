// Runs one rank's program, step by step. It makes no decisions: the program states the order of
// instructions, the address of every value and the waits for collectives.
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
  // Owns the parameters and buffers that the program borrows (StepSpec::borrow_weights), in the
  // same parts. Must outlive this executor.
  const Executor* lender = nullptr;
};

// The host's inputs of one step.
struct StepInputs {
  int64_t step = 1;                       // counts from 1; also the scalar "step"
  std::map<std::string, double> scalars;  // "lr.0", ...
  // Returns a data tensor of one microbatch (with several copies of the model: of the rank's copy).
  // It has the shape of the global microbatch, of which the rank reads its shard, or of that shard.
  std::function<at::Tensor(const std::string& name, int64_t microbatch)> data;
};

// Times are nanoseconds of now().
using compile::Interval;

class Executor {
 public:
  // Allocates the frames, fills constants and finds a kernel for every instruction. The
  // communicator (kept by reference) is this rank's; groups are those of the mesh. Throws Error
  // naming op and scope for an instruction that cannot run.
  Executor(compile::Program program, Communicator& communicator, const mesh::Mesh& mesh,
           ExecutorOptions options = {});
  ~Executor();
  Executor(Executor&&) noexcept;

  // Runs one optimizer step. Throws Error naming rank, op, scope, section and microbatch, after it
  // has aborted the other ranks' collectives.
  void run(const StepInputs& inputs);

  // Returns this rank's part of a parameter, buffer, state or result, valid between steps, on the
  // rank's device. It shares memory with the program: writing to it changes the program's value.
  // Throws Error for an unknown name, with the nearest one, and for a tensor held in
  // several pieces.
  at::Tensor tensor(compile::Binding::Kind kind, const std::string& name) const;
  // Returns the tensor of one of program().bindings.
  at::Tensor tensor(const compile::Binding& binding) const;
  // Returns the names of that kind in the program's order, each once.
  std::vector<std::string> names(compile::Binding::Kind kind) const;

  const compile::Program& program() const;
  int64_t frame_bytes() const;

  // Returns why the device cannot record the program's steps ("perigee::route in scope \"layers.0\"
  // reads numbers on the host"), or "".
  std::string unrecordable() const;
  // From now on, records a step and replays it (exec/replay.h); all ranks call it, or none. A step
  // whose intervals are recorded runs as before. `required`: a step that the device refuses to record
  // is an error. Throws Error where the program has an op that cannot be recorded.
  void replay_steps(bool required);

  // Nanoseconds of a step.
  struct StepTimes {
    int64_t submitted = 0;  // in which the host submitted the work; on a CPU, nearly the whole step
    // In which the compute stream waited for collectives; 0 for a recorded step.
    int64_t waited = 0;
  };
  // Returns those of the last step.
  StepTimes step_times() const;

  // Returns in how many steps parameters, buffers or states began to change. A step that ended by an
  // error and is not among them left them as they were.
  int64_t updates_begun() const;

  // Turns the recording of intervals on or off and clears the recorded ones.
  void record(bool on);
  const std::vector<Interval>& intervals() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perigee::exec
