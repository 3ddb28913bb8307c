// Measures the ops and collectives of a plan's programs on this machine.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "cost/cluster.h"
#include "data/data.h"
#include "job/job.h"
#include "profile/times.h"
#include "train/ranks/connect.h"
#include "train/step/rank_trainer.h"

namespace perigee::train {

struct MeasureOptions {
  double seconds = 0;      // budget
  bool remeasure = false;  // measure ops that have times, too
};

// The ops and collectives that a profile run covered.
struct Profiled {
  // Distinct op instances of all programs (compile::key), and those of them that were measured
  // before and that were measured by this run. The times of the others stay estimates.
  std::set<std::string> ops, known, measured;
  int64_t collectives = 0;  // kinds (cost::ExchangeKind) measured alone
  double seconds = 0;
  int64_t left_out = 0;  // repeated blocks that were not run, of the plan with the most
  double widest = 0;     // the widest interval of an op, as a share of its time

  // Adds the results of a later run.
  void add(const Profiled& next);
};

// By section and instruction of a shortened program: how many instructions of the whole program it
// represents (train/measure/repeated_blocks.h).
using Represents = std::vector<std::vector<double>>;

// Trains a few steps on all ranks and measures every distinct op and every collective within the
// steps (train/measure/step_times.h); new kinds of collectives are also measured alone, for sizes
// that the programs do not have. With the job's profile.parallel = false rank 0 measures the ops
// alone, as profile_ops. `trainer` is this rank's, with its first values; it may run a shortened
// program, described by `represents`. Rank 0 stores the times. All ranks call it. `progress` is
// called on rank 0 with the number of finished parts and of all parts. `cluster`: rank 0's has the
// levels that connect the ranks.
Profiled profile_programs(const compile::Programs& programs, RankTrainer& trainer,
                          const Represents& represents, const mesh::Mesh& mesh, const job::Job& job,
                          const Connection& connection, DataSource& data,
                          profile::TimeDatabase& times, const MeasureOptions& options,
                          const cost::Cluster& cluster,
                          const std::function<void(int64_t, int64_t)>& progress);

// Measures the ops on this rank alone, one program after another, for at most `seconds`;
// collectives do nothing. `data` as in SoloRun.
Profiled profile_ops(const compile::Programs& programs, const mesh::Mesh& mesh, const job::Job& job,
                     const std::shared_ptr<exec::Device>& device, DataSource* data,
                     profile::TimeDatabase& times, double seconds);

// Returns the counts as a sentence.
std::string describe(const Profiled& done);

}  // namespace perigee::train
