// Simulations for people and programs.
#pragma once

#include <string>

#include "search/simulate.h"

namespace perigee::search {

// Returns step time, bubbles, and per distinct program how long each stream was busy and what
// memory it takes. Says which share of the time was measured.
std::string to_text(const Simulation& simulation, const compile::Programs& programs,
                    const cost::Cluster& cluster);

// The same as JSON ("perigee.simulation/1"), ending in a newline.
std::string to_json(const Simulation& simulation, const compile::Programs& programs,
                    const cost::Cluster& cluster);

// Returns "12.3 ms", "4.56 s".
std::string seconds_text(double seconds);
// Returns "12.3 GiB".
std::string bytes_text(double bytes);

}  // namespace perigee::search
