// Simulations as text and JSON.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "simulate/simulate.h"
#include "simulate/utilisation.h"

namespace perigee::simulate {

// Returns step time, MFU, bubble ratio, the measured share of the time, and per distinct program
// the busy time of each kind of stream and its peak memory.
std::string to_text(const Simulation& simulation, const compile::Programs& programs,
                    const cost::Cluster& cluster, const Utilisation& utilisation);

// Returns the simulation as JSON ("perigee.simulation/1"), ending in a newline.
std::string to_json(const Simulation& simulation, const compile::Programs& programs,
                    const cost::Cluster& cluster, const Utilisation& utilisation);

// Returns the busy seconds of a rank's communication streams by axis, the longest first. A pipeline
// axis has one stream for each pair of parts ("pipe:0>1/24>25"): they are added up.
std::vector<std::pair<std::string, double>> busy_by_kind(const RankTime& rank,
                                                         const compile::Program& program);
// Returns busy_by_kind as text: "tensor 4.76 s, pipe 227 ms"; "" for none.
std::string busy_text(const RankTime& rank, const compile::Program& program);

// Returns "12.3 ms", "4.56 s".
std::string seconds_text(double seconds);
// Returns "12.3 T", "512".
std::string count_text(double count);
// Returns the measured share of a predicted time in words: "all of it measured", "all of it
// estimated", "37% of it measured, the rest estimated".
std::string measured_text(double share);

}  // namespace perigee::simulate
