// The folder of a run, `train.output` (runtime/runs.md): job.toml, plan.json, plan.html, data.json,
// memory.json, trace.json, log.txt, metrics.jsonl, checkpoints/. With train.checkpoint_target the checkpoints are in an S3
// service, beside copies of job.toml and plan.json: a run is resumed from there on any host.
#pragma once

#include <string>
#include <string_view>

#include "job/job.h"

namespace perigee::train {

struct RunOptions {
  bool resume = false;
  std::string resume_from;  // a run or a checkpoint; "": the job's own output
  bool overwrite = false;
};

// Returns the run whose checkpoints a job writes and resumes: train.checkpoint_target where it is
// given, else train.output.
const std::string& checkpoint_run(const job::Job& job);

// Returns whether that run has a complete checkpoint.
bool has_checkpoint(const job::Job& job);

// Returns whether the command of that random id has begun the job's run, in checkpoint_run(job).
// Until then its restarts have its own options: a run that it is to overwrite is still there.
bool has_begun(const job::Job& job, const std::string& invocation);

// A run's folder, opened by rank 0 for as long as the run writes to it. While it is open, no other
// process can open it.
class RunFolder {
 public:
  // Makes the folder where it is missing. Throws Error when
  //   another process has it open,
  //   it or train.checkpoint_target holds a run and the options neither resume that run nor overwrite
  //   it,
  //   there is nothing to resume, or the resumed run has another format (view/run_format.h), or
  //   the job differs from the resumed run's in keys that may not change.
  // A folder without a step and a checkpoint holds no run. Resuming from another run's checkpoint
  // starts a new run here.
  RunFolder(const job::Job& job, const RunOptions& options);
  // Without `begin`, removes the folders that were created for it.
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const;  // `path`/`name`
  // The checkpoint to continue from, or "".
  const std::string& checkpoint() const { return checkpoint_; }
  // The keys that changed since the resumed run and may (job::adjusted_keys).
  const std::vector<std::string>& changes() const { return changes_; }
  // Returns the path of the resumed run's plan.json; "" where there is none.
  std::string resumed_plan() const;

  // Returns the content of the resumed run's data.json (data/files_record.h); "" where there is none.
  std::string resumed_data() const;

  // Removes the files of an earlier run, also those in train.checkpoint_target, and no others,
  // unless that run is resumed. Where it is resumed from a step before its last checkpoint, later
  // checkpoints are set aside (checkpoint::set_aside_later), with a copy of the metrics. Called
  // once, after all checks. `invocation`: of has_begun; "": none.
  void begin(const std::string& invocation = "");
  // Returns whether the run goes on in its own folder, which holds its metrics.
  bool resumes() const { return resumes_ && holds_metrics_; }

  // Throws Error (failed) where the folder was removed and another run has one of that name.
  void require_own() const;
  // Throws Error (failed) where files that a resumed run needs were removed while this one ran.
  void require_resumable() const;

  // Write job.toml, plan.json and data.json, atomically, also to train.checkpoint_target. Called
  // after `begin`.
  void write_job(const job::Job& job) const;
  void write_plan(std::string_view text) const;
  void write_data(std::string_view text) const;
  // Write memory.json (memory_json), trace.json, and the page about the plan, plan.html, which only
  // pages about the run read. An empty page removes that of another plan.
  void write_memory(std::string_view text) const;
  void write_trace(std::string_view text) const;
  void write_report(std::string_view text) const;

 private:
  void prepare(const job::Job& job, const RunOptions& options, const std::string& from);
  void require_free(const RunOptions& options) const;
  // Throws Error where files that a run replaces are of others. For a folder that had no run.
  void require_no_other_files() const;
  void close();
  void set_later_aside() const;
  void write_copy(const char* name, std::string_view text) const;
  bool is_remote() const { return store_ != path_; }

  std::string path_;
  std::string store_;  // the run that holds the checkpoints: `path_`, or train.checkpoint_target
  std::string checkpoint_;
  std::vector<std::string> changes_;
  std::string created_;  // the topmost folder that was created for it, or ""
  bool resumes_ = false, holds_metrics_ = true, began_ = false;
  bool made_lock_ = false;  // the file that is locked was not there
  int lock_ = -1;
};

}  // namespace perigee::train
