// The memory that is missing where no plan fits.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "search/space/choice.h"

namespace perigee::search {

// A plan that needs more memory than the limit.
struct Fitting {
  double extra_bytes = 0;  // of a rank, above the limit, with which it fits
  double bytes = 0;        // of the rank with the highest peak
  Choice choice;
};

// Returns the bytes rounded up to the digits that bytes_text writes.
double round_up(double bytes);

// Returns the least memory with which a plan is found, to 2% of the rank's limit. Searches for
// `seconds`, from a guess of the missing bytes on; returns nothing where no plan was found.
// `attempt` searches a plan with `extra_bytes` and returns the one found, which may need more than
// that. `limit`: bytes of a rank.
struct Missing {
  double limit = 0, guess = 0;
};
std::optional<Fitting> least_missing_memory(
    const Missing& missing, double seconds,
    const std::function<std::optional<Fitting>(double extra_bytes)>& attempt);

// Facts for the error where no plan fits.
struct Shortage {
  size_t combinations = 0;
  double limit = 0;                                             // bytes of a rank
  double bytes = std::numeric_limits<double>::infinity();       // least need by the model
  Choice choice;                                                // that needs them
  std::string refused;                                          // reason of a compiled plan
  double balance = 0;                                           // Pins::balance
  double time_limit = std::numeric_limits<double>::infinity();  // seconds that ended the search
};

// Throws Error (infeasible) with the missing memory of the plan that needs the least.
[[noreturn]] void fail_none_fits(const Shortage& shortage, const std::optional<Fitting>& fitting);

}  // namespace perigee::search
