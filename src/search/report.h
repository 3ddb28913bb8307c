// Simulations for people and programs.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "search/simulate.h"
#include "search/utilisation.h"

namespace perigee::search {

// Returns step time, MFU, bubbles, and per distinct program how long streams of each kind were busy
// and what memory it takes. Says which share of the time was measured.
std::string to_text(const Simulation& simulation, const compile::Programs& programs,
                    const cost::Cluster& cluster, const Utilisation& utilisation);

// The same as JSON ("perigee.simulation/1"), ending in a newline.
std::string to_json(const Simulation& simulation, const compile::Programs& programs,
                    const cost::Cluster& cluster, const Utilisation& utilisation);

// Returns the busy seconds of a rank's streams of each kind beside compute, the longest first:
// those of one axis are one, of which a pipeline has one for each pair of parts ("pipe:0>1/24>25").
std::vector<std::pair<std::string, double>> busy_by_kind(const RankTime& rank,
                                                         const compile::Program& program);
// Returns them as "tensor 4.76 s, pipe 227 ms"; "" for none.
std::string busy_text(const RankTime& rank, const compile::Program& program);

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
