// One rank of a training job: its programs, its parts of the tensors, and its steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "compile/compile.h"
#include "compile/stages/stage_inputs.h"
#include "data/data.h"
#include "exec/executor.h"
#include "train/ranks/blueprint.h"
#include "train/ranks/connect.h"

namespace perigee::train {

// The pieces of a checkpoint that a rank writes.
struct Snapshot {
  std::vector<checkpoint::Piece> pieces;
  std::vector<size_t> not_finite;  // indices of the pieces with a number that is NaN or infinite
};

struct StepResult {
  double loss = 0;
  double grad_norm = 0;                       // before clipping; 0 where the job does not clip
  std::optional<double> loss_scale;           // of this step, where the plan scales the loss
  bool skipped = false;                       // nothing changed
  std::map<std::string, at::Tensor> results;  // this rank's part
};

// A guarded step with a loss or gradient norm above these changes nothing.
struct StepLimits {
  double loss = std::numeric_limits<double>::infinity();
  double grad_norm = std::numeric_limits<double>::infinity();
};

class RankTrainer {
 public:
  // Compiles the training program; `edit` may replace it. Keeps references to blueprint,
  // job and traces.
  RankTrainer(const Blueprint& blueprint, const job::Job& job, Connection connection,
              compile::TraceSource& traces,
              const std::function<compile::Program(compile::Program)>& edit = nullptr);
  ~RankTrainer();

  // Sets parameters and buffers: from train.weights and train.adapter, of which every rank reads its
  // parts; those that they lack, from the blueprint's init graph, or without one from rank 0's `values`, by name.
  // Throws Error as checkpoint::InitialWeights and AdapterValues, before any is set, and for a tensor
  // of the model without a first value where train.initialise is false. `done` is told how many of
  // all tensors are set.
  using Done = std::function<void(int64_t part, int64_t all)>;
  void initialise(
      const std::function<at::Tensor(const std::string&)>& values,
      const Done& done = [](int64_t, int64_t) {});
  // Throws Error for a checkpoint of another model or optimizer.
  void require_fits(const checkpoint::Checkpoint& checkpoint) const;
  // Does so, before it sets anything.
  void load(
      const checkpoint::Checkpoint& checkpoint, const Done& done = [](int64_t, int64_t) {});
  // Sets the loss scale of the next steps, for a plan with a given loss scale; all ranks set the
  // same. Throws Error unless it is above 0.
  void set_loss_scale(double scale);

  // Records a later step: before step() returns, `done` receives the Chrome trace of all ranks, on
  // each of them. All ranks call it.
  void trace(int64_t step, std::function<void(const std::string& trace)> done);
  // Runs one optimizer step on the samples of `step`; with train.forward_only a forward pass.
  // A guarded step (step_spec.h) that is not finite, above the limits, or in train.skip_steps
  // changes nothing.
  StepResult step(int64_t step, DataSource& data, const StepLimits& limits = {});
  // After a step that was skipped: forgets that it ran, so that step() runs it a second time from
  // the same state.
  void forget_skipped();
  // Runs the forward pass on the samples of `step`, in eval mode, with the weights as they are:
  // loss and results.
  StepResult evaluate(int64_t step, DataSource& data);
  // Frees the evaluation program's memory.
  void end_evaluation();

  // Returns the pieces that this rank writes to a checkpoint (checkpoint::owners): the bytes of its
  // tensors or, where `copy` has room (bytes_to_write), copies of them in it. Without it, pieces on
  // a GPU are copied to the host and kept until the next call. Where ranks train copies of the
  // model they include each copy's own values and their averages.
  Snapshot pieces_to_write(int64_t step, std::span<std::byte> copy = {});
  // Returns the bytes of those pieces.
  int64_t bytes_to_write(int64_t step) const;
  // Returns host memory to which the device copies fast (exec::Device::allocate_host).
  std::shared_ptr<std::byte> host_memory(int64_t bytes) const;
  // Computes the averages of the tensors in which copies of the model differ after the step, for
  // pieces_to_write. All ranks call it first.
  void average_copies(int64_t step);
  // Returns the full tensor of a parameter or buffer of the training graph, on the CPU and of its
  // type in the graph, where a rank may store another. All ranks call it in the same order.
  at::Tensor full(compile::Binding::Kind kind, const std::string& name);

  // Returns the full results of the last evaluate, on the CPU. All ranks call it.
  std::map<std::string, at::Tensor> full_results();

  exec::Executor& executor() { return *executor_; }
  // Returns the peak memory of the last step in bytes, counted by the allocator: the program's
  // frames and the allocations of its ops. Of the whole process, where it runs several ranks.
  int64_t step_peak() const { return step_peak_; }
  // Returns the largest exec::library_bytes() after one of the first steps, by which every op and
  // collective has run.
  int64_t library_bytes() const { return library_bytes_; }
  const Blueprint& blueprint() const { return blueprint_; }
  const compile::StepSpec& spec() const { return spec_; }
  // Returns whether the rank's program knows that a step changed nothing (StepResult::skipped).
  bool may_skip() const {
    return executor_->program().find(compile::Binding::Kind::state, "loss_scale:skipped_steps");
  }
  // Returns whether a step gives the same bytes when it is run a second time.
  bool is_deterministic() const { return !on_gpu() || job_.cluster.deterministic; }
  bool on_gpu() const { return !connection_.device->place().is_cpu(); }

 private:
  exec::ExecutorOptions executor_options() const;
  // Returns the average over copies of the model; the tensor itself where there is one copy.
  at::Tensor averaged(const at::Tensor& own);
  // Returns the full tensor from the ranks of this pipeline stage, which has it.
  at::Tensor full_of_stage(compile::Binding::Kind kind, const std::string& name);
  // Returns a parameter that is kept in parts, gathered over its unit's axes; else nothing.
  at::Tensor joined_parts(const std::string& name);
  // Checks a declared loss by number on the samples of `step` (check_loss.h).
  void check_loss(int64_t step, DataSource& data);
  StepResult run(exec::Executor& executor, int64_t step, DataSource& data,
                 std::map<std::string, double> scalars, bool training);
  void read_loss_scale();
  // The part of a checkpoint's tensor that a binding is read from; none where it has none.
  struct Stored {
    std::optional<checkpoint::TensorPart> part;
    bool of_copy = false;  // a row of a tensor with all copies of the model
  };
  Stored stored(const checkpoint::Checkpoint& checkpoint, const compile::Binding& binding) const;
  // Returns the first value of a parameter or buffer; nothing where it is not `wanted` on this rank
  // and no other rank needs this one to take part.
  at::Tensor first_value(const graph::Input& input,
                         const std::function<at::Tensor(const std::string&)>& values, bool wanted);

  const Blueprint& blueprint_;
  const job::Job& job_;
  Connection connection_;
  exec::Communicator& communicator_;  // of the connection
  compile::TraceSource& traces_;
  compile::StepSpec spec_;
  compile::StageInputs stages_;  // of the training graph
  std::unique_ptr<exec::Executor> executor_, evaluator_;
  std::vector<at::Tensor> on_host_;   // of pieces_to_write()
  std::vector<at::Tensor> averages_;  // by binding of the program; undefined: copies are equal
  int64_t step_peak_ = 0, library_bytes_ = 0;
  int64_t steps_run_ = 0;
  bool loss_checked_ = false;
  std::optional<double> loss_scale_;  // of the next step; nothing: not read yet
  double skipped_steps_ = 0;
  std::map<std::string, at::Tensor> guard_before_;  // states of the guard before the last step
  int64_t traced_step_ = -1;
  std::function<void(const std::string&)> traced_;
};

}  // namespace perigee::train
