// What the command asks of the part that links LibTorch. perigee_torch exports `perigee_host`; the
// command opens the library only for work that needs tensors. Torch-free, so that the command's
// sources compile without LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "job/job.h"
#include "job/place.h"
#include "plan/plan.h"

namespace perigee::train {

// A job and what the command line adds to it.
struct Task {
  job::Job job;
  std::string strategy = "auto";  // "auto", or the path of a strategy script
  bool strategy_given = false;    // on the command line: a resumed run then does not use its plan
  std::string plan_file;          // "": made from the strategy
  std::string runtime_folder;     // Lua modules that scripts can require
  int64_t world = 1;
  bool world_given = false;  // by a launcher, --nproc or cluster.ranks
  double script_seconds = 5;
  int64_t script_megabytes = 256;
  // Receives, on rank 0, a Chrome trace of what all ranks did in the second step (or the only one),
  // once it has run. Empty: nothing is recorded.
  std::function<void(const std::string& trace)> trace;
  bool plain = false;           // "auto" is data parallel over all ranks: nothing is searched
  bool simulate_trace = false;  // simulate: fill SimulateResult::trace
  bool report = false;          // plan: fill PlanResult::report
  bool advice = false;          // simulate: say which changes would make a step shorter
  bool resume = false;
  std::string resume_from;  // a run or a checkpoint; "": train.output
  bool overwrite = false;
  // Called on rank 0 with the path of log.txt once the run's folder is its own. May be empty.
  std::function<void(const std::string& path)> open_log;
};

struct PlanResult {
  graph::Graph graph;
  plan::Plan plan;
  std::string report;  // the plan as a page (search/page.h), where asked for
};

struct GradientReport {
  std::string text;  // a line for each parameter
  bool passed = false;
};

// Of `perigee profile`.
struct ProfileOptions {
  double seconds = 120;  // budget of all measurements; what it leaves out stays an estimate
  bool again = false;    // measure what is known too
  std::string export_to, import_from;  // JSON files ("perigee.profile/1")
};

using ProfileProgress = std::function<void(int64_t plan, int64_t done, int64_t all)>;

// Of `perigee simulate`.
struct SimulateResult {
  std::string text;   // for people
  std::string json;   // "perigee.simulation/1"
  std::string trace;  // Chrome trace events, where asked for
};

struct SampleOptions {
  std::string checkpoint;  // "": the newest of train.output
  std::string prompt;
  int64_t tokens = 256;
  double temperature = 1.0;  // 0: the likeliest token
  int64_t top_k = 0;         // 0: all
  uint64_t seed = 0;
};

class Host {
 public:
  virtual ~Host() = default;
  // Returns how many ranks the job has where nothing else says it: one for each of cluster.devices,
  // or for each GPU of this host where it computes on GPUs, else 1. Does not use CUDA, so ranks may
  // be forked afterwards.
  virtual int64_t default_ranks(const job::Job& job) = 0;
  // Captures the job's model and makes the plan. Takes no time measurements and runs no step.
  virtual PlanResult plan(const Task& task) = 0;
  // Runs one rank until training ends, `stop_requested` says so, or an Error. Rank 0 writes the
  // run's folder. With cluster.in_process this and the commands below run all ranks of place.world
  // as threads; what a rank returns is rank 0's.
  virtual void train(const Task& task, const job::RankPlace& place,
                     const std::function<bool()>& stop_requested) = 0;
  // Runs the gradients of the job's first step both ways (train/gradient_check.h), all ranks in
  // this process. Writes nothing.
  virtual GradientReport check_gradients(const Task& task, double tolerance) = 0;
  // Runs one rank of an evaluation of the checkpoint ("": the newest of train.output). Rank 0
  // returns the metrics as JSON text, the others "".
  virtual std::string evaluate(const Task& task, const std::string& checkpoint,
                               const job::RankPlace& place) = 0;
  // Measures, as one rank of the job's plan, what its programs run, and keeps it in the profile
  // database; where the search chose the plan, of others too that might be faster, until the choice
  // stands. Rank 0 returns what was done as a sentence, the others "". `progress` is told of which
  // plan, from 1 on, how many of how many are done.
  virtual std::string profile(const Task& task, const ProfileOptions& options,
                              const job::RankPlace& place, const ProfileProgress& progress) = 0;
  // Exports or imports the profile database, as the options say. Returns what was done.
  virtual std::string move_profile(const ProfileOptions& options) = 0;
  // Makes the plan and simulates a step of it, on cluster.file or from what was measured here.
  virtual SimulateResult simulate(const Task& task) = 0;
  // Generates text on one rank; `print` receives it piece by piece.
  virtual void sample(const Task& task, const SampleOptions& options,
                      const std::function<void(std::string_view)>& print) = 0;
  // Writes the full weights of a checkpoint as one safetensors file.
  virtual void export_weights(const std::string& checkpoint, const std::string& file) = 0;
  // Returns lines for `perigee doctor`: back ends, devices, versions, what is missing.
  virtual std::vector<std::string> doctor() = 0;
};

}  // namespace perigee::train

// Returns the library's one host.
extern "C" perigee::train::Host* perigee_host();
