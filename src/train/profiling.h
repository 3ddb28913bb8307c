// `perigee profile`: measures what the programs of a job run, on the machine at hand.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "job/job.h"
#include "profile/times.h"
#include "train/connect.h"
#include "train/data.h"
#include "train/host.h"
#include "train/rank_trainer.h"

namespace perigee::train {

// What a profile run did.
struct Profiled {
  std::set<std::string> ops;       // distinct op instances of all programs (compile::key)
  std::set<std::string> known;     // of them: measured before
  std::set<std::string> measured;  // of them: measured now; the others' times stay estimates
  int64_t collectives = 0;         // kinds and group sizes measured
  double seconds = 0;
  int64_t left_out = 0;  // blocks that others stand for, of the plan with the most
  double widest = 0;     // the widest interval of an op, as a share of its time

  // Adds what was done behind it.
  void add(const Profiled& next);
};

// How many of the instructions of a program, by section, each one stands for (train/repeats.h).
using StandsFor = std::vector<std::vector<double>>;

// Trains a few steps on all ranks and measures every distinct op and every collective where it
// stands (train/step_times.h); kinds of collectives that are new are measured by themselves, too,
// for sizes that the programs do not have. With the job's profile.parallel = false rank 0 measures
// the ops alone, as profile_ops. `trainer` is this rank's, with its first values, and may run a
// shortened program, of which `stands_for` tells. Rank 0 keeps the times. All ranks call it.
// `progress` is told on rank 0 how many of how many parts are done.
Profiled profile_programs(const compile::Programs& programs, RankTrainer& trainer,
                          const StandsFor& stands_for, const mesh::Mesh& mesh, const job::Job& job,
                          const Connection& connection, DataSource& data,
                          profile::TimeDatabase& times, const ProfileOptions& options,
                          const std::function<void(int64_t, int64_t)>& progress);

// Measures the ops on this rank alone, one program after the other, until so many seconds are over:
// collectives do nothing. `data` as in Rehearsal.
Profiled profile_ops(const compile::Programs& programs, const mesh::Mesh& mesh, const job::Job& job,
                     const std::shared_ptr<exec::Device>& device, DataSource* data,
                     profile::TimeDatabase& times, double seconds);

// Returns that as a sentence.
std::string describe(const Profiled& done);

}  // namespace perigee::train
