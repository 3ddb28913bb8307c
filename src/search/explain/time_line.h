// A simulated step as a picture.
#pragma once

#include <string>

#include "compile/compile.h"
#include "simulate/simulate.h"

namespace perigee::search {

// Returns an SVG element with a row for each simulated rank (the first `most` of
// them) and its sections from 0 to `until` seconds, with microbatch numbers where
// they fit. Requires Simulation::runs.
struct TimeLineOptions {
  double until = 0;
  size_t most = 64;
};
std::string time_line(const simulate::Simulation& simulation, const compile::Programs& programs,
                      const TimeLineOptions& options);

// Returns the legend of the rows' colours as HTML.
std::string time_line_legend(const simulate::Simulation& simulation,
                             const compile::Programs& programs);

// Returns the end of the range that the page shows enlarged, in seconds: the pipeline is then full,
// and each rank has run a few sections. At most the whole step.
double first_part(const simulate::Simulation& simulation);

}  // namespace perigee::search
