// What the ranks of a profile measured, each on its own, joined on rank 0.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cost/cluster.h"
#include "profile/measure.h"
#include "train/step_times.h"

namespace perigee::train {

// A kind of collective over so many ranks.
using Kind = std::pair<cost::CollectiveKind, int64_t>;
using PointsByKind = std::map<Kind, profile::Points>;

// Returns what a rank's program took as text. `together`: by step, a moment of the rank's clock at
// which all ranks stood together.
std::string print(const StepTimes& times, const std::vector<int64_t>& together);

struct JoinedTimes {
  std::map<std::string, profile::Measured> ops;  // by compile::key
  PointsByKind exchanges;
};

// Joins the texts of all ranks, by rank. `steps`: those that times are means over.
JoinedTimes join(const std::vector<std::string>& ranks, const std::vector<size_t>& steps);

}  // namespace perigee::train
