// Joins the measurements of all ranks on rank 0.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cost/cluster.h"
#include "profile/measure.h"
#include "train/measure/step_times.h"

namespace perigee::train {

using PointsByKind = std::map<cost::ExchangeKind, profile::Points>;

// Returns one rank's times as text. `barriers`: for each step, the time on the rank's clock at
// which all ranks left a barrier.
std::string print(const StepTimes& times, const std::vector<int64_t>& barriers);

struct JoinedTimes {
  std::map<std::string, profile::Measured> ops;  // by compile::key
  PointsByKind exchanges;
};

// Joins the texts of all ranks, by rank. `steps`: the steps that times are means over. `cluster`:
// has the levels that connect the ranks.
JoinedTimes join(const std::vector<std::string>& ranks, const std::vector<size_t>& steps,
                 const cost::Cluster& cluster);

}  // namespace perigee::train
