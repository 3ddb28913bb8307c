// When pipelines whose stages run in rounds end a step, where their parts are not alike.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cost/schedule.h"
#include "search/choice.h"

namespace perigee::search {

// Whether all stages run a chunk for some microbatches before the next chunk, so that they wait for
// the longest part that one of them has of it.
bool runs_in_rounds(const std::string& schedule);

// Of a microbatch. Seconds.
struct PartTimes {
  double forward = 0, backward = 0;
  double again = 0;  // of backward: what runs again, before a gradient is there
  bool operator==(const PartTimes&) const = default;
};

class Rounds {
 public:
  // Returns the seconds until the last backward pass of the choice's schedule ends (one that runs
  // in rounds). `transfer`: of a message between two stages. Of many microbatches the last ones are
  // taken to be as long as those before them.
  double seconds(const Choice& choice, const std::vector<PartTimes>& parts, double transfer);

  // Returns how many microbatches the first stage has in flight in its first part, and in all its
  // others together; or the last stage in its last one.
  std::pair<double, double> in_flight(const Choice& choice, bool first);

 private:
  const Schedule& schedule_of(const Choice& choice, int64_t microbatches);
  double run(const Choice& choice, int64_t microbatches, const std::vector<PartTimes>& parts,
             double transfer);

  // By schedule, stages, chunks and microbatches.
  std::map<std::tuple<std::string, int64_t, int64_t, int64_t>, Schedule> known_;
  std::map<std::tuple<std::string, int64_t, int64_t, int64_t, bool>, std::pair<double, double>>
      flights_;
};

}  // namespace perigee::search
