// A simulated step as a picture.
#pragma once

#include <string>

#include "compile/compile.h"
#include "search/simulate.h"

namespace perigee::search {

// Returns an SVG element: a row for each simulated rank (the first `most` of them), what it runs
// when, from 0 to `until` seconds, with the numbers of microbatches where there is room. Requires
// Simulation::runs.
struct TimeLine {
  double until = 0;
  size_t most = 64;
};
std::string time_line(const Simulation& simulation, const compile::Programs& programs,
                      const TimeLine& options);

// Returns the colours that rows have, with what they stand for, as HTML.
std::string time_line_legend(const Simulation& simulation, const compile::Programs& programs);

// Returns the seconds until which a closer look is worth it: the pipeline is then full, and each
// rank has run a few sections. The whole step where that is no less.
double first_part(const Simulation& simulation);

}  // namespace perigee::search
