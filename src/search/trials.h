// Searches by trials: combinations of pins are tried one by one; a search of its own finds the rest
// of each plan. ATorch's names: `combination` tries all, `bo` those that
// Bayesian optimisation expects to be best.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace perigee::search {

struct TrialOptions {
  std::string algorithm = "bo";  // bo, combination or random
  int64_t trials = 30;           // at most; `combination` tries all, whatever this is
  int64_t patience = 8;          // bo: ends where the best is older than so many trials; 0: never
  double time_limit = 0;         // seconds after which no trial begins; 0: unlimited
  double measure = 0;            // seconds for measuring a plan's ops first; 0: not measured
  uint64_t seed = 0;
};

// One combination.
struct Trial {
  std::vector<int> options;  // of each variable
  nlohmann::json pins;       // the combination's (search/space/choice.h)
  nlohmann::json strategy;
  double seconds = std::numeric_limits<double>::infinity();  // of a step
  double bytes = 0;
  std::string refused;  // why there is no plan; "" where there is one
};

struct Trials {
  std::vector<Trial> list;  // in the order in which they were tried
  int best = -1;            // index; -1: no plan
  std::string ended;        // "all", "trials", "patience", "time"
  int64_t combinations = 0;
};

// The options of each variable: tables of pins.
using Variables = std::vector<std::vector<nlohmann::json>>;

// Completes a trial that has options and pins; `left` are the seconds that the limit leaves
// (infinity without one). A thrown Error becomes `refused`.
using Attempt = std::function<void(Trial& trial, double left)>;

// Tries combinations of `common` and an option of each variable. Combinations whose options
// contradict each other are left out of the list. `clock` returns seconds. Throws
// Error for an unknown algorithm and for variables without options.
Trials run_trials(const nlohmann::json& common, const Variables& variables,
                  const TrialOptions& options, const Attempt& attempt,
                  const std::function<double()>& clock);

// Returns the options of a table (the fields above), and its
// variables. Throws Error for unknown names, with the nearest, and for wrong types.
TrialOptions parse_trials(const nlohmann::json& table, Variables& variables);

}  // namespace perigee::search
