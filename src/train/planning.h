// From a captured model, a strategy and a job to a plan.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "capture/capture.h"
#include "job/job.h"
#include "plan/plan.h"

namespace perigee {

namespace search {
struct Found;
}

using job::Job;

// A model that can be captured at any batch size, for training or evaluation. Keeps the module and
// the callback; tensors are captured, never moved.
class Source {
 public:
  // `example` may have any number of samples. `batched`: its tensors whose dim 0 is the samples;
  // the others are the same for all samples, and of any shape. Empty: all are batches. Throws Error
  // for a name that the example lacks.
  Source(std::shared_ptr<torch::nn::Module> module, Batch example, Forward forward,
         std::vector<std::string> batched = {});

  // Records the training step (loss, gradients, new buffers) or, in eval mode, the forward pass,
  // for `samples` samples. The last capture of each kind is kept.
  const Captured& at(int64_t samples, bool evaluation = false) const;
  // Returns the samples of the example.
  int64_t samples() const;
  torch::nn::Module& module() const { return *module_; }
  // Throws Error where the job says of another input that it is a batch.
  void check(const Job& job) const;

 private:
  bool is_batched(const std::string& name) const;
  Batch resized(int64_t samples) const;

  std::shared_ptr<torch::nn::Module> module_;
  Batch example_;
  Forward forward_;
  std::vector<std::string> batched_;
  struct Kept {
    int64_t samples = 0;
    std::shared_ptr<const Captured> captured;
  };
  mutable Kept training_, evaluation_;
};

// Limits of a strategy script.
struct ScriptOptions {
  double seconds = 5;
  int64_t megabytes = 256;
  uint64_t seed = 0;  // of math.random
  std::string
      runtime_folder;  // where `require "perigee.x"` finds modules written in Lua; "" for none
};

// How to spread the work: a script, a list of methods, or a plan.
class Strategy {
 public:
  // "auto": what the job's dialect says, else the best plan that search/ finds.
  Strategy();
  // Runs a strategy script. Throws Error with the script's line.
  static Strategy file(const std::string& path, const ScriptOptions& options = {});
  // The dialect's table of a job. Throws Error with the place in the job's file.
  static Strategy dialect(const job::Dialect& dialect, const ScriptOptions& options);
  // A strategy as data: JSON text of a list of names and [name, config] pairs, or of {"job",
  // "methods"}.
  static Strategy data(const std::string& json);
  // A finished plan.
  static Strategy plan(plan::Plan plan);

  // Whether its script has a function for this event of training; calls it with a report (JSON
  // text). Throws Error with the script's line.
  bool observes(const std::string& event) const;
  // Returns the number that the function for the event answers for a step. Throws Error where there
  // is no such function, or it answers none.
  double ask(const std::string& event, int64_t step) const;
  void notify(const std::string& event, const std::string& report) const;

 private:
  friend struct Resolver;
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// A plan with what it was made for.
struct Planned {
  std::shared_ptr<const Source> source;
  Captured captured;  // at the plan's global microbatch
  plan::Plan plan;
  Job job;
  bool predicted = false;  // the plan's prediction is from its programs, by what is known here
  std::shared_ptr<const search::Found> found;  // by the strategy "auto", else nullptr
  Strategy strategy;                           // that made it: it may observe the training
};

// How many ranks there are; 0: the strategy's mesh, else job.cluster.ranks, else 1.
struct World {
  int64_t size = 0;
  std::string runtime_folder;  // what ships, for "auto"; "" for none
  bool foretold = false;       // the plan is for cluster.file's devices, which need not be here
};

// Captures the model at the size that the strategy's plan needs and makes the plan. Takes no time
// measurements (but where a strategy function asks for them). Throws Error where job, strategy,
// graph and ranks do not fit together.
Planned make_plan(std::shared_ptr<const Source> source, const Strategy& strategy, const Job& job,
                  World world = {});

}  // namespace perigee
