// The profile database's traces and times of a job's device.
#pragma once

#include <memory>
#include <string>

#include "compile/compile.h"
#include "cost/op_time.h"
#include "job/job.h"
#include "profile/times.h"
#include "profile/traces.h"

namespace perigee::train {

// Returns the times of the job's ops with `ranks` ranks on the machine.
profile::TimeDatabase times_of(profile::Database& database, const exec::Device& device,
                               const job::Job& job, int64_t ranks);

// Where the job's profile has only times of other kinds of device, so that times stay estimates:
// throws Error if the job names the profile (cluster.profile), else logs a line.
void check_profile(const job::Job& job);
// Throws Error where an exported profile (JSON text) has no entries of a device of this machine.
// `file`: its name in the message.
void check_import(const std::string& json, const std::string& file);

// Reads allocation traces and times of the job's device from the profile database; records and
// measures nothing. Has no entries for a described cluster or for a GPU that this machine lacks.
class RecordedProfile {
 public:
  // `ranks`: how many ranks of the job run on this machine.
  RecordedProfile(const job::Job& job, int64_t ranks);
  ~RecordedProfile();
  RecordedProfile(const RecordedProfile&) = delete;

  compile::TraceSource& traces();
  cost::Measurements& times();
  // Drops cached entries: later calls read the database.
  void forget();

 private:
  std::unique_ptr<profile::Database> database_;
  std::unique_ptr<profile::TraceDatabase> traces_;
  std::unique_ptr<profile::KnownTraces> recorded_;
  std::unique_ptr<profile::TimeDatabase> times_;
  compile::NoTraces no_traces_;
  cost::NoMeasurements no_times_;
};

}  // namespace perigee::train
