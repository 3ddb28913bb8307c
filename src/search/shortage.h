// How much memory a plan lacks where none fits.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "search/choice.h"

namespace perigee::search {

// A plan that takes more memory than there is.
struct Fitting {
  double more = 0;   // bytes a rank with which it fits, beside what there are
  double bytes = 0;  // of the rank that takes the most
  Choice choice;
};

// Returns the bytes rounded up to what bytes_text writes.
double round_up(double bytes);

// Returns the least memory with which a plan is found, to 2% of what a rank may then use. Looks for
// so many seconds, from a guess of what is missing on; returns nothing where none was found.
// `attempt` looks for a plan with so much more memory, and returns the one that it comes to, which
// may take more than that still. `limit`: the bytes that there are.
struct Missing {
  double limit = 0, guess = 0;
};
std::optional<Fitting> least_more(
    const Missing& missing, double seconds,
    const std::function<std::optional<Fitting>(double more)>& attempt);

// What is known where none fits.
struct Shortage {
  size_t combinations = 0;
  double limit = 0;                                             // bytes of a rank
  double bytes = std::numeric_limits<double>::infinity();       // the least by the model
  Choice choice;                                                // that takes them
  std::string refused;                                          // why one is that was compiled
  double time_limit = std::numeric_limits<double>::infinity();  // seconds that ended the search
};

// Throws Error: infeasible, with what the plan lacks that needs the least.
[[noreturn]] void fail_none_fits(const Shortage& shortage, const std::optional<Fitting>& fitting);

}  // namespace perigee::search
