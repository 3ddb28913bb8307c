// One rank of a training job: its programs, its part of the tensors, and one step after the other.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "compile/stage_inputs.h"
#include "exec/executor.h"
#include "train/blueprint.h"
#include "train/checkpoint.h"
#include "train/connect.h"
#include "train/data.h"
#include "train/safetensors.h"

namespace perigee::train {

struct StepResult {
  double loss = 0;
  double grad_norm = 0;                       // before clipping; 0 where the job does not clip
  std::optional<double> loss_scale;           // that the step had, where the plan scales the loss
  bool skipped = false;                       // the step changed nothing: its gradients
  std::map<std::string, at::Tensor> results;  // this rank's part
};

class RankTrainer {
 public:
  // Compiles the training program, and runs what `edit` makes of it. Blueprint, job and traces are
  // kept by reference.
  RankTrainer(const Blueprint& blueprint, const job::Job& job, Connection connection,
              compile::TraceSource& traces,
              const std::function<compile::Program(compile::Program)>& edit = nullptr);
  ~RankTrainer();

  // Sets parameters and buffers: from the file train.weights where it has them, which every rank
  // reads, else from the blueprint's init graph or, where there is none, from rank 0's `values` by
  // name. Throws Error for one that the file lacks where train.initialise is false.
  void initialise(const std::function<at::Tensor(const std::string&)>& values);
  void load(const Checkpoint& checkpoint);
  // Sets the scale of the next steps' loss, of a plan whose loss scale is given; the same on all
  // ranks. Throws Error for what is not above 0.
  void set_loss_scale(double scale);

  // Has one of the next steps recorded: before step() returns, `done` receives the Chrome trace of
  // all ranks, on each of them. All ranks call it.
  void trace(int64_t step, std::function<void(const std::string& trace)> done);
  // Runs one optimizer step on the samples of `step`; with train.forward_only a forward pass.
  StepResult step(int64_t step, DataSource& data);
  // Runs the forward pass on the samples of `step`, in eval mode, with the weights as they are:
  // loss and results.
  StepResult evaluate(int64_t step, DataSource& data);
  // Gives the evaluation program's memory back.
  void end_evaluation();

  // This rank's parts, for a checkpoint; ownership is in `owners`. Parts that lie on a GPU are
  // copied, and the copies kept until the next call.
  // Where ranks train copies of the model they are each rank's own and their averages.
  std::vector<Piece> pieces_to_write(int64_t step);
  // Makes the averages of what copies have apart after the step, for pieces_to_write. All ranks
  // call it before.
  void average_copies(int64_t step);
  // Returns the whole tensor of a parameter or buffer of the training graph, on the CPU. All ranks
  // call it in one order.
  at::Tensor full(compile::Binding::Kind kind, const std::string& name);

  // Returns the results of the last evaluate, whole, on the CPU. All ranks call it.
  std::map<std::string, at::Tensor> full_results();

  exec::Executor& executor() { return *executor_; }
  // Returns the most bytes that the last step held at once, counted by the allocator: the program's
  // memory and what its ops allocated beside it. Of the whole process, where it runs several ranks.
  int64_t step_peak() const { return step_peak_; }
  // Returns exec::library_bytes() as it was after one of the first steps, where it was largest: by
  // then every op and collective has run.
  int64_t library_bytes() const { return library_bytes_; }

 private:
  exec::ExecutorOptions executor_options() const;
  // Returns the average over copies of the model; the tensor itself where there is one.
  at::Tensor averaged(const at::Tensor& own);
  // The same from the ranks of this stage of a pipeline, which has it.
  at::Tensor full_of_stage(compile::Binding::Kind kind, const std::string& name);
  // Returns a parameter whole on its unit's axes where it is kept in parts, else nothing.
  at::Tensor joined_parts(const std::string& name);
  StepResult run(exec::Executor& executor, int64_t step, DataSource& data, bool training);
  void read_loss_scale();
  // Returns a parameter or buffer as train.weights has it; nothing where it has none.
  at::Tensor from_file(const graph::Input& input);
  // Returns it as the model begins; nothing where it is not wanted here and no other rank needs
  // this one's part in it.
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
  std::vector<at::Tensor> averages_;  // like the program's bindings; undefined: not apart
  int64_t step_peak_ = 0, library_bytes_ = 0;
  int64_t steps_run_ = 0;
  std::unique_ptr<const SafetensorsFile> weights_;  // while they are set
  std::optional<double> loss_scale_;                // of the next step; nothing: not read yet
  double skipped_steps_ = 0;
  int64_t traced_step_ = -1;
  std::function<void(const std::string&)> traced_;
};

// What the host brings to a step for every group of the spec: the scalars "lr.0", ... and, where
// the weight decay varies, "weight_decay.0", ...
std::map<std::string, double> step_scalars(const job::Job& job, int64_t step);

}  // namespace perigee::train
