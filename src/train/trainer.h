// Training from C++: the interface for applications that embed Perigee (runtime/embedding.md).
//
//   auto net    = perigee::deferred<Net>(args);              // or an existing module
//   auto source = perigee::source(net, example, loss);
//   auto job    = perigee::Job::load("job.toml");            // or built in code
//   auto plan   = perigee::make_plan(source, perigee::Strategy::file("s.lua"), job, {4});
//   perigee::Trainer trainer{*net, plan, job, perigee::Ranks::threads(4),
//   std::make_unique<Mine>()}; trainer.run(); trainer.copy_to(*net);
//
// Errors are perigee::Error. A Trainer is used from one thread. Where all ranks are of this process,
// it goes on after an error, such as one of the data source or of a custom op; after one that came
// while a step changed weights or buffers, load() must be called first. An error in one of several
// processes ends the trainers of all.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "data/data.h"
#include "job/place.h"
#include "train/measure/profile_path.h"
#include "train/plan/make_plan.h"
#include "train/task/source.h"

namespace perigee {

// The ranks that this process runs.
class Ranks {
 public:
  // `count` ranks as threads of this process.
  static Ranks threads(int64_t count);
  // The one rank that torchrun, Slurm or mpirun made this process, or a single one. Throws Error
  // for an environment that is incomplete.
  static Ranks from_environment();
  // One rank of several processes, which meet at place.host:place.port.
  static Ranks process(job::RankPlace place);

 private:
  friend class Trainer;
  int64_t threads_ = 1;
  bool process_ = false;
  job::RankPlace place_;
};

// One optimizer step.
struct Report {
  int64_t step = 0;
  double loss = 0;       // over the global batch
  double grad_norm = 0;  // before clipping
  double lr = 0;
  double seconds = 0;
  std::optional<double> loss_scale;  // of this step, where the plan scales the loss
  bool skipped = false;              // the gradients were not finite: nothing changed
};

// Whether Trainer::run continues after a step.
enum class Control { go, stop };

class Trainer {
 public:
  // Compiles the plan for every rank of this process and sets the first values: from
  // job.train.weights, from `net`'s tensors, or, for tensors that are deferred, as recorded at their
  // construction. `profile`: the database of allocation traces, shared by runs ("": that of the
  // job, or the user's). All processes construct their Trainer with the same arguments.
  Trainer(torch::nn::Module& net, const PlannedJob& plan, const Job& job, Ranks ranks,
          std::unique_ptr<DataSource> data, const std::string& profile = "");
  ~Trainer();
  Trainer(Trainer&&) noexcept;

  // Sets the function that run() calls after every step, in the process of rank 0.
  // Control::stop ends the run on all ranks.
  void on_step(std::function<Control(const Report&)> callback);
  // Runs the steps after the last one up to job.train.steps.
  void run();
  // Runs one step on a global batch (job.batch.global samples).
  Report step(const Batch& batch);
  // Returns the last step that ran.
  int64_t last_step() const;

  // Returns the loss of a global batch in eval mode and, for plans with one microbatch and no
  // pipeline, means of scalar results.
  std::map<std::string, double> evaluate(const Batch& batch);
  // Returns the full named results of a global batch in eval mode, on the CPU. The plan must have
  // one microbatch, no pipeline and one copy of the model.
  std::map<std::string, at::Tensor> forward(const Batch& batch);

  // Writes and reads weights, optimizer state and step, below `folder`/checkpoints, of which the
  // newest train.keep_checkpoints stay.
  void save(const std::string& folder);
  void load(const std::string& folder);
  // Copies the full weights and buffers into the module, which gets ordinary CPU tensors where it
  // was deferred. Adapters are merged into their weights.
  void copy_to(torch::nn::Module& net);

 private:
  struct Impl;
  Impl& impl() const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perigee
