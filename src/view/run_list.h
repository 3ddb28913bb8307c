// The runs below some folders, followed while they are written.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "view/plots.h"

namespace perigee::view {

class RunList {
 public:
  // Each path is a run's folder (it has metrics.jsonl or job.toml), or a folder of runs. Throws
  // Error for a path that is no folder.
  explicit RunList(std::vector<std::string> paths);

  // Finds new runs and reads their new steps. Runs whose folders are gone are left out.
  void refresh();

  // Returns for each run, the one with the newest metrics first: `name`, unique in the list;
  // `folder`; `steps`, the last step, and `of`, the job's number of steps; the newest `loss`,
  // `val_loss`, `tokens_per_s` and `mfu`; `seconds` spent in steps; `damaged`, the lines of its
  // metrics that are left out; `state`: "running", "finished", "stopped" (no step for a minute and
  // 20 times the last one's time), or "unreadable": `problem` says why. Unknown values are null.
  nlohmann::json overview() const;

  // Returns the job, the plan's decisions, the time of the last change of its report (null: none),
  // the last bytes of the log, the last step's memory and seconds of each rank, the summary, the
  // predicted memory by kind (memory.json, null without it) and the times of the traced step
  // (trace_times; null without trace.json, {"error"} where that cannot be shown). Throws Error
  // for a name that no run has and for a run in another format, as the functions below.
  nlohmann::json details(std::string_view name) const;

  // Returns the page about the run's plan (plan.html); "" without one.
  std::string report(std::string_view name) const;

  // Returns the charts of these runs.
  std::vector<Chart> charts(const std::vector<std::string>& names,
                            const PlotOptions& options) const;

  // Returns the keys of the jobs that differ, as a list of {key, a, b} (TOML; "": not set), and
  // the differences of the plans as text.
  nlohmann::json differences(std::string_view a, std::string_view b) const;

 private:
  struct Trace;  // the times of trace.json as it was when they were read
  struct Entry {
    std::string name, folder;
    std::shared_ptr<Metrics> metrics;
    std::shared_ptr<Trace> trace;
    std::string problem;  // why its metrics cannot be read, or ""
  };

  void add(const std::string& folder);
  const Entry& entry(std::string_view name) const;

  std::vector<std::string> paths_;
  std::vector<Entry> entries_;
};

}  // namespace perigee::view
