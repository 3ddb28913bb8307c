// How to spread a model over ranks: a script, a list of methods, or a plan.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "job/job.h"
#include "plan/plan.h"

namespace perigee {

// Limits of a strategy script.
struct ScriptOptions {
  double seconds = 5;
  int64_t megabytes = 256;
  uint64_t seed = 0;  // of math.random
  // Folder in which `require "perigee.x"` finds modules written in Lua; "": none.
  std::string runtime_folder;
};

class Strategy {
 public:
  // "auto": the table of the job's dialect, else the best plan that the search finds.
  Strategy();
  // Runs a strategy script. Throws Error with the script's line.
  static Strategy file(const std::string& path, const ScriptOptions& options = {});
  // The dialect's table of a job. Throws Error with the position in the job's file.
  static Strategy dialect(const job::Dialect& dialect, const ScriptOptions& options);
  // A strategy as data: JSON text of a list of names and [name, config] pairs, or
  // of {"job", "methods"}.
  static Strategy data(const std::string& json);
  // A finished plan.
  static Strategy plan(plan::Plan plan);

  // Returns whether the script has a function for this event of training.
  bool observes(const std::string& event) const;
  // Returns the number that the script's function for the event returns for a step. Throws Error
  // where there is no such function or it returns no number.
  double ask(const std::string& event, int64_t step) const;
  // Calls the script's function for the event, if any, with a report (JSON text). Throws Error with
  // the script's line.
  void notify(const std::string& event, const std::string& report) const;

 private:
  friend struct StrategyAccess;
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace perigee
