// What is known of a job's device.
#pragma once

#include <memory>
#include <string>

#include "compile/compile.h"
#include "cost/op_time.h"
#include "job/job.h"
#include "profile/times.h"
#include "profile/traces.h"

namespace perigee::train {

// Returns the times of the job's ops where so many ranks run on the machine.
profile::TimeDatabase times_of(profile::Database& database, const exec::Device& device,
                               const job::Job& job, int64_t ranks);

// Says where the job's times stay estimates since its profile has those of other kinds of device
// alone: throws Error where the job names the profile (cluster.profile), else logs a line.
void check_profile(const job::Job& job);
// Throws Error where nothing of an exported profile is of a device of this machine.
void check_import(const std::string& json, const std::string& file);

// Allocation traces and times that are in the profile database for the job's device; nothing is
// recorded or measured. Of a described cluster, and of a GPU that this machine lacks, nothing is
// known.
class Known {
 public:
  // `ranks` of the job run on this machine.
  Known(const job::Job& job, int64_t ranks);
  ~Known();
  Known(const Known&) = delete;

  compile::TraceSource& traces();
  cost::Measurements& times();
  // Has later questions look into the database again.
  void forget();

 private:
  class Recorded;
  std::unique_ptr<profile::Database> database_;
  std::unique_ptr<profile::TraceDatabase> all_;
  std::unique_ptr<Recorded> recorded_;
  std::unique_ptr<profile::TimeDatabase> times_;
  compile::NoTraces no_traces_;
  cost::NoMeasurements no_times_;
};

}  // namespace perigee::train
