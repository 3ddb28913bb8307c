// `perigee profile`: measures what the programs of a job run, on the machine at hand.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "compile/compile.h"
#include "job/job.h"
#include "profile/times.h"
#include "train/connect.h"
#include "train/host.h"

namespace perigee::train {

// What a profile run did.
struct Profiled {
  int64_t ops = 0;          // distinct op instances of all programs
  int64_t known = 0;        // of them: measured before
  int64_t measured = 0;     // of them: measured now
  int64_t unmeasured = 0;   // of them: cannot be run alone, or beyond the budget
  int64_t collectives = 0;  // kinds and group sizes measured
  double seconds = 0;
  double widest = 0;  // the widest interval of an op, as a share of its time
};

// Measures every distinct op instance of the programs, and each kind of collective over each size
// of group, on all ranks at once, as they run in training; rank 0's times are kept. All ranks call
// it. `progress` is told on rank 0 how many of how many are done.
Profiled profile_programs(const compile::Programs& programs, const mesh::Mesh& mesh,
                          const job::Job& job, const Connection& connection,
                          compile::TraceSource& traces, profile::TimeDatabase& times,
                          const ProfileOptions& options,
                          const std::function<void(int64_t, int64_t)>& progress);

// Measures the ops alone, on this rank alone, for at most so many seconds.
Profiled profile_ops(const compile::Programs& programs, const job::Job& job,
                     const std::shared_ptr<exec::Device>& device, compile::TraceSource& traces,
                     profile::TimeDatabase& times, double seconds);

// Returns that as a sentence.
std::string describe(const Profiled& done);

}  // namespace perigee::train
