// How long the ops and collectives of a rank's program take where they stand. Alone, again and
// again, an op finds its operands in the cache and takes half as long as in a step; a collective
// that nothing runs beside is as much faster. Times are means over the typical steps, the half of
// all that are neither short nor long: so the parts of a step add up to one.
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

// A collective of the program: from when it runs on this rank to its end, or until what waits for
// it goes on, hence with what this rank waits for others.
struct ExchangeTime {
  search::Exchange exchange;
  profile::Measured time;
  double places = 1;  // as how many it counts
};

// One side of a message between two ranks.
struct MessageSide {
  search::Exchange exchange;
  bool receives = false;
  std::vector<int64_t> begin, end;  // by step, in nanoseconds of this rank's clock
};

// Reads what recorded steps of one program took.
class StepTimes {
 public:
  // `stands_for`: by section and instruction, as how many an op or collective counts; 0: an op is
  // not told of.
  // Empty: as one each.
  StepTimes(const compile::Program& program, const mesh::Mesh& mesh,
            const std::vector<std::vector<double>>& stands_for = {});

  // Adds a step, as the executor recorded it.
  void add(const std::vector<compile::Interval>& intervals);

  int64_t steps() const { return std::ssize(durations_); }
  // Returns the time of each op instance, by compile::key: the mean over its places in the program.
  // What the rank does between two ops counts for the later one.
  std::map<std::string, profile::Measured> ops() const;
  // Returns the collectives between ranks, but for messages, stream by stream in the order in which
  // they run; ranks that share a stream have them in one order. messages() the same.
  std::vector<ExchangeTime> exchanges() const;
  const std::vector<MessageSide>& messages() const { return messages_; }
  // Returns the steps that times are means over.
  const std::vector<size_t>& typical_steps() const { return typical_; }

 private:
  // An op or load in its place; a collective in its.
  struct Op {
    std::string key;              // "": a load
    double places = 1;            // as how many it counts
    bool follows = false;         // on another one, with nothing between
    std::vector<double> seconds;  // by step
  };
  struct Collective {
    search::Exchange exchange;
    double places = 1;
    std::vector<double> seconds;
  };
  // What runs on a stream: an index of collectives_ or of messages_; neither: SIZE_MAX.
  struct Place {
    size_t collective = SIZE_MAX, message = SIZE_MAX;
  };

  // Adds to the step's collectives what passes from their end until an op that waited for them
  // runs.
  void wake(const std::vector<compile::Interval>& intervals,
            const std::vector<std::vector<const compile::Interval*>>& ran);
  profile::Measured typical(const std::vector<double>& by_step) const;

  std::vector<Op> ops_;
  std::vector<Collective> collectives_;
  std::vector<MessageSide> messages_;
  std::vector<std::vector<Place>> by_stream_;
  std::vector<int64_t> durations_;  // by step, in nanoseconds
  std::vector<size_t> typical_;
};

}  // namespace perigee::train
