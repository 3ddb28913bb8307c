// How long the ops and collectives of a rank's program take where they stand. Alone, again and
// again, an op finds its operands in the cache and takes half as long as in a step; a collective
// that nothing runs beside is as much faster.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compile/program.h"
#include "compile/timeline.h"
#include "mesh/mesh.h"
#include "profile/measure.h"
#include "search/op_cost.h"

namespace perigee::train {

// A collective of the program.
struct ExchangeTimes {
  search::Exchange exchange;
  std::vector<double> seconds;  // from when it runs on this rank to its end, by step
};

// Reads what recorded steps of one program took.
class StepTimes {
 public:
  StepTimes(const compile::Program& program, const mesh::Mesh& mesh);

  // Adds a step, as the executor recorded it.
  void add(const std::vector<compile::Interval>& intervals);

  int64_t steps() const { return steps_; }
  // Returns the time of each op instance, by compile::key: over its places in the program the mean
  // of the medians over steps.
  std::map<std::string, profile::Measured> ops() const;
  // Returns the collectives between ranks, but for messages, stream by stream in the order in which
  // they run; ranks that share a stream have them in one order.
  const std::vector<ExchangeTimes>& exchanges() const { return exchanges_; }

 private:
  std::vector<std::string> keys_;             // of the ops in their order; "": a load
  std::vector<std::vector<double>> samples_;  // like keys_: seconds, by step
  std::vector<ExchangeTimes> exchanges_;
  std::vector<std::vector<size_t>> by_stream_;  // indices of exchanges_; SIZE_MAX: a message
  int64_t steps_ = 0;
};

}  // namespace perigee::train
