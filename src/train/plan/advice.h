// Changes that a user can make to a plan that needs too much memory or time, and their effects.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "methods/method.h"
#include "train/plan/make_plan.h"

namespace perigee::train {

// One change of the strategy or of a key of the job, with the plan that it leads to, which was
// compiled and simulated.
struct Change {
  std::string text;  // as a user writes it: `fsdp`, `batch.micro = 2`; "": no change
  methods::PlanCost cost;
  plan::Plan plan;  // with its prediction of memory
};

// The plan, and the plans that each of a list of changes leads to. Changes that lead to no valid
// plan are left out, as are those that are not tried before the time limit.
struct Advice {
  Change now;
  std::vector<Change> changes;
  std::string bound_by;  // the largest part of a step: "compute, 80% of a step", "waits, ..."
};

// Tries changes for at most `seconds`. The plan must be made by a list of methods; plans of "auto",
// which the search has chosen among all, and plans from files have no changes.
Advice advise(const PlannedJob& planned, const std::string& runtime_folder, double seconds);

// Returns the changes that reduce the plan's memory, a line for each: those whose plan `fits`, the
// fastest first, or, if none fits alone, those that save the most. "" if none does.
std::string memory_advice(const Advice& advice, const std::function<bool(const plan::Plan&)>& fits);

// Returns what bounds the step time and the changes that shorten it and whose plan `fits`, a line for
// each, the fastest first.
std::string speed_advice(const Advice& advice, const std::function<bool(const plan::Plan&)>& fits);

}  // namespace perigee::train
