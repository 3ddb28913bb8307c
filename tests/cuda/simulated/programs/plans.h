// Plans of all parallelisms, compiled, and their runs on simulated GPUs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "compile/program.h"
#include "cuda/calls.h"
#include "exec/recorder.h"
#include "tests/parity/support/ranks.h"

namespace perigee::cuda {

// A strategy for a small model on up to four ranks. `methods`: as data, beside the microbatches.
struct Row {
  std::string name;
  std::string axes;
  std::string methods = "";
  std::string model;  // keys of a job's [model]
  int64_t microbatches = 2;
  std::string dtype = "float64";  // of the model
};

const std::vector<Row>& rows();

// The programs of a row's ranks, and the outcome of each rank on CPUs.
struct Compiled {
  parity::Given given;
  plan::Plan plan;
  std::vector<compile::Program> programs, validations;
  std::vector<parity::Outcome> expected;
  mutable std::vector<parity::Outcome> varied;  // once varied_difference has been called
};

// Returns the row of that name, compiled and trained once. Throws std::out_of_range for other names.
const Compiled& compiled(const std::string& name);

// The outcome of a run on simulated GPUs.
struct Simulated {
  std::vector<parity::Outcome> ranks;
  std::vector<std::string> errors;  // by rank, "" for none
  std::vector<std::string> races, broken_rules;
  std::string deadlock;
  uint64_t order = 0;  // identifies the order of the work

  // Returns the first finding but differing results, or "".
  std::string finding() const;
};

// Trains two steps of the programs, whose order of work the seed chooses, with a table of calls
// that `change` edits.
Simulated simulate(const Compiled& of, const std::vector<compile::Program>& programs, uint64_t seed,
                   const std::function<void(Calls&)>& change = {});

// Returns "" where every rank has each bit of the expected outcome, else the first difference.
std::string difference(const Compiled& of, const Simulated& run);

// Runs of more steps, whose batches and learning rates differ; after each one the samples of the step
// are validated. The losses of an outcome are those of training and of validation in turn.
struct Varied {
  bool replay = true;    // of recorded steps
  bool required = true;  // a step that cannot be recorded is an error
  std::function<void(Calls&)> change = {};
  // Returns a recorder in place of the device's.
  std::function<std::unique_ptr<exec::Recorder>(exec::Recorder&)> recorder = {};
};

// Runs the row's programs so on simulated GPUs.
Simulated simulate_varied(const Compiled& of, uint64_t seed, const Varied& how = {});

// Returns "" where every rank has each bit of the outcome on CPUs, else the first difference.
std::string varied_difference(const Compiled& of, const Simulated& run);

}  // namespace perigee::cuda
