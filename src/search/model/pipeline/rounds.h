// Step time of pipelines that run in rounds (schedule::Description::in_rounds), where their parts
// are not identical: all stages wait for the longest part of a chunk.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "schedule/schedule.h"
#include "search/space/choice.h"

namespace perigee::search {

// Seconds of one microbatch.
struct PartTimes {
  double forward = 0, backward = 0;
  double recomputed = 0;  // of backward: can run before the gradient arrives
  bool operator==(const PartTimes&) const = default;
};

class Rounds {
 public:
  // Returns the seconds until the last backward pass of the choice's schedule ends (one that
  // runs in rounds). `transfer`: of a message between two stages. The time of many
  // microbatches is extrapolated.
  double seconds(const Choice& choice, const std::vector<PartTimes>& parts, double transfer);

  // Returns the most in-flight microbatches of the first stage's first part (or of the last stage's
  // last part), and of all other parts of that stage together.
  std::pair<double, double> in_flight(const Choice& choice, bool first);

 private:
  const Schedule& schedule_of(const Choice& choice, int64_t microbatches);
  double run(const Choice& choice, int64_t microbatches, const std::vector<PartTimes>& parts,
             double transfer);

  // By schedule, stages, chunks and microbatches.
  std::map<std::tuple<std::string, int64_t, int64_t, int64_t>, Schedule> schedules_;
  std::map<std::tuple<std::string, int64_t, int64_t, int64_t, bool>, std::pair<double, double>>
      flights_;
};

}  // namespace perigee::search
