// Training from C++: what an application embeds (runtime/README.md section 9).
//
//   auto net    = perigee::deferred<Net>(args);              // or an existing module
//   auto source = perigee::source(net, example, loss);
//   auto job    = perigee::Job::load("job.toml");            // or built in code
//   auto plan   = perigee::make_plan(source, perigee::Strategy::file("s.lua"), job);
//   perigee::Trainer trainer{*net, plan, job, perigee::Ranks::threads(4),
//   std::make_unique<Mine>()}; trainer.run(); trainer.copy_to(*net);
//
// Errors are perigee::Error. A Trainer is used from one thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "job/place.h"
#include "train/data.h"
#include "train/planning.h"

namespace perigee {

// Returns the model with how it is called; `example` may have any number of samples. `batched`: the
// job's data.batched, by name.
inline std::shared_ptr<const Source> source(std::shared_ptr<torch::nn::Module> module,
                                            Batch example, Forward forward,
                                            std::vector<std::string> batched = {}) {
  return std::make_shared<Source>(std::move(module), std::move(example), std::move(forward),
                                  std::move(batched));
}

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
  std::optional<double> loss_scale;  // that the step had, where the plan scales the loss
  bool skipped = false;              // the step changed nothing: its gradients were not finite
};

enum Verdict { Go, Stop };

class Trainer {
 public:
  // Compiles the plan for every rank here and sets the first values: from job.train.weights, from
  // `net`'s tensors, or for a deferred module from its recipe. `profile` is the database of
  // allocation traces, shared by runs
  // ("": in the user's cache folder). With several processes all construct their Trainer alike.
  Trainer(torch::nn::Module& net, const Planned& plan, const Job& job, Ranks ranks,
          std::unique_ptr<DataSource> data, const std::string& profile = "");
  ~Trainer();
  Trainer(Trainer&&) noexcept;

  // Called after every step of run(), on the rank 0 side; Stop ends the run on all ranks.
  void on_step(std::function<Verdict(const Report&)> callback);
  // Runs the steps after the last one up to job.train.steps.
  void run();
  // Runs one step on a global batch (job.batch.global samples).
  Report step(const Batch& batch);
  // Returns the last step that ran.
  int64_t last_step() const;

  // Returns the loss of a global batch in eval mode, and means of scalar results.
  std::map<std::string, double> evaluate(const Batch& batch);
  // Returns the named results of a global batch in eval mode, whole, on the CPU. The plan must have
  // one microbatch.
  std::map<std::string, at::Tensor> forward(const Batch& batch);

  // Writes and reads weights, optimizer state and step, below `folder`/checkpoints.
  void save(const std::string& folder);
  void load(const std::string& folder);
  // Copies the full weights and buffers into the module, which gets ordinary CPU tensors where it
  // was deferred.
  void copy_to(torch::nn::Module& net);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Returns where this user's profile is kept.
std::string default_profile();
// Returns the path of the job's: cluster.profile, else the default.
std::string profile_of(const Job& job);

}  // namespace perigee
