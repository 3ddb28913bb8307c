// Simulations for people and programs.
#pragma once

#include <string>

#include "search/simulate.h"
#include "search/utilisation.h"

namespace perigee::search {

// Returns step time, MFU, bubbles, and per distinct program how long each stream was busy and what
// memory it takes. Says which share of the time was measured.
std::string to_text(const Simulation& simulation, const compile::Programs& programs,
                    const cost::Cluster& cluster, const Utilisation& utilisation);

// The same as JSON ("perigee.simulation/1"), ending in a newline.
std::string to_json(const Simulation& simulation, const compile::Programs& programs,
                    const cost::Cluster& cluster, const Utilisation& utilisation);

// Returns "12.3 ms", "4.56 s".
std::string seconds_text(double seconds);
// Returns "12.3 GiB", "512 B", "75 TiB".
std::string bytes_text(double bytes);
// Returns "12.3 T", "512".
std::string count_text(double count);
// Returns how much of a predicted time was measured: "all of it measured", "all of it estimated",
// "37% of it measured, the rest estimated".
std::string measured_text(double share);

}  // namespace perigee::search
