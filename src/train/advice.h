// What a user may change about a plan that takes too much memory or time, and what each change
// does.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "methods/method.h"
#include "train/planning.h"

namespace perigee::train {

// One change of the strategy or of a key of the job. The plan with it was made, compiled and
// simulated as the plan itself.
struct Change {
  std::string what;  // as a user writes it: `fsdp`, `batch.micro = 2`; "": nothing is changed
  methods::Taken takes;
  plan::Plan plan;  // with its prediction of memory
};

// The plan as it is, and what it would be with each of a list of changes. Changes that no plan can
// be made with are left out, and so are those that are not looked at when `seconds` are over.
struct Advice {
  Change now;
  std::vector<Change> changes;
  std::string bound_by;  // what most of a step is: "compute, 80% of a step", "waits, ..."
};

// Returns it for a plan that was made of a list of methods. `changes` is empty for other plans:
// those of "auto", which the search has chosen among all, and those that are given whole.
Advice advise(const Planned& planned, const std::string& runtime_folder, double seconds);

// Returns what changes bring a plan below the memory that there is, a line for each, the fastest
// first: those whose plan `fits`, or, where none alone does, those that save the most. "" where
// there is none.
std::string memory_advice(const Advice& advice, const std::function<bool(const plan::Plan&)>& fits);

// Returns what a step is bound by and which changes make it shorter, a line for each, the fastest
// first.
std::string speed_advice(const Advice& advice);

}  // namespace perigee::train
