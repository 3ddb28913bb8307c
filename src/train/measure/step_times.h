// The times of the ops and collectives of a rank's program within its steps. In a loop of its own
// an op finds its operands in the cache and takes half as long as in a step, and a collective
// without concurrent work is faster, too. Times are means over the typical steps, the half of
// all steps whose lengths are nearest the median, so that the parts of a step add up to a step.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compile/program.h"
#include "compile/timeline.h"
#include "mesh/mesh.h"
#include "profile/measure.h"
#include "simulate/op_cost.h"

namespace perigee::train {

// A collective of the program. Its time runs from its start on this rank to its end, or to when the
// op that waits for it starts, and includes this rank's wait for other ranks.
struct ExchangeTime {
  simulate::Exchange exchange;
  profile::Measured time;
  double weight = 1;  // how many collectives it represents
};

// One side of a message between two ranks.
struct MessageSide {
  simulate::Exchange exchange;
  bool receives = false;
  std::vector<int64_t> begin, end;  // by step, in nanoseconds of this rank's clock
};

// Reads the times of recorded steps of one program.
class StepTimes {
 public:
  // `represents`: by section and instruction, how many ops or collectives it represents; 0: an op
  // is ignored. Empty: each represents itself.
  StepTimes(const compile::Program& program, const mesh::Mesh& mesh,
            const std::vector<std::vector<double>>& represents = {});

  // Adds a step, as the executor recorded it.
  void add(const std::vector<compile::Interval>& intervals);

  int64_t steps() const { return std::ssize(durations_); }
  // Returns the time of each op instance, by compile::key: the mean over its instructions in the
  // program. Time between two ops counts for the later one.
  std::map<std::string, profile::Measured> ops() const;
  // Returns the collectives between ranks except messages, stream by stream in the order in which
  // they run, which is the same on all ranks that share a stream.
  std::vector<ExchangeTime> exchanges() const;
  // Returns the messages in the same order.
  const std::vector<MessageSide>& messages() const { return messages_; }
  // Returns the steps that times are means over.
  const std::vector<size_t>& typical_steps() const { return typical_; }

 private:
  // An op or load instruction.
  struct OpTimes {
    std::string key;              // "": a load
    double weight = 1;            // how many ops it represents
    bool follows = false;         // another op or load directly
    std::vector<double> seconds;  // by step
  };
  struct CollectiveTimes {
    simulate::Exchange exchange;
    double weight = 1;
    std::vector<double> seconds;  // by step
  };
  // A transfer on a stream: an index of collectives_ or of messages_, SIZE_MAX for neither.
  struct StreamTransfer {
    size_t collective = SIZE_MAX, message = SIZE_MAX;
  };

  // Adds to the step's collectives the time from their end until the op that waited
  // for them starts.
  void add_wake_up(const std::vector<compile::Interval>& intervals,
                   const std::vector<std::vector<const compile::Interval*>>& ran);
  profile::Measured typical(const std::vector<double>& by_step) const;

  std::vector<OpTimes> ops_;
  std::vector<CollectiveTimes> collectives_;
  std::vector<MessageSide> messages_;
  std::vector<std::vector<StreamTransfer>> by_stream_;
  std::vector<int64_t> durations_;  // by step, in nanoseconds
  std::vector<size_t> typical_;
};

}  // namespace perigee::train
