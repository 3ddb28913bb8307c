// How much memory a plan lacks where none fits.
#pragma once

#include <functional>
#include <optional>

#include "search/choice.h"

namespace perigee::search {

// A plan that fits in more memory than there is.
struct Fitting {
  double more = 0;   // bytes a rank, beside what there are
  double bytes = 0;  // of the rank that takes the most
  Choice choice;
};

// Returns the bytes rounded up to what bytes_text writes.
double round_up(double bytes);

// Returns the least memory with which `attempt` finds a plan, to 2% of what a rank may then use:
// with as much it did. Looks for so many seconds, from a guess of what is missing on; returns
// nothing where none was found. `limit`: the bytes that there are; `attempt_seconds`: about what an
// attempt takes that finds none.
struct Missing {
  double limit = 0, guess = 0, attempt_seconds = 0;
};
std::optional<Fitting> least_more(
    const Missing& missing, double seconds,
    const std::function<std::optional<Fitting>(double more)>& attempt);

}  // namespace perigee::search
