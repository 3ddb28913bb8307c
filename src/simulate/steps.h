// Programs as the simulator runs them: steps with times.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "compile/program.h"
#include "simulate/op_cost.h"

namespace perigee::simulate {

// A class of equivalent ranks.
struct Actor {
  const compile::Program* program = nullptr;
  int64_t rank = 0;                                 // the first one
  int64_t replicas = 0;                             // ranks of the class
  std::map<compile::Stream, int64_t> slowest = {};  // slowest_groups
};

// A collective of an actor's program.
struct SimulatedCollective {
  int32_t meeting = 0;          // Meetings::number; its actors match their n-th collectives
  std::vector<int32_t> actors;  // the actors that take part, ascending
  int level = -1;               // network level of its contention (cost::level_of)
  double seconds = 0;           // without contention
  int32_t stream = 0;
};

struct SimulatedStep {
  enum class Kind : uint8_t { compute, start, wait } kind = Kind::compute;
  double seconds = 0;                            // compute: duration
  double busy = 0;                               // compute: part of it without folded waits
  int32_t link = -1;                             // start: index into RankSteps::links
  int32_t event = -1;                            // start, wait
  const compile::Instruction* source = nullptr;  // without folding
};

struct RankSteps {
  std::vector<std::vector<SimulatedStep>> sections;
  std::vector<SimulatedCollective> links;
  // By section: busy seconds of streams whose collectives were folded into compute steps.
  std::vector<std::map<int32_t, double>> hidden;
  double seconds = 0, measured = 0;  // of all ops and collectives, each counted once
};

// Numbers the pairs of a stream and the set of actors that communicate on it.
class Meetings {
 public:
  int32_t number(const compile::Stream& stream, const std::vector<int32_t>& actors);

 private:
  std::map<std::pair<compile::Stream, std::vector<int32_t>>, int32_t> numbers_;
};

// Returns the seconds by which a collective, which takes `seconds` without contention, has held up
// the ops beside it on the same cores, for a rank that waits for it at `now`.
inline double held_up(double now, double begin, double end, double seconds) {
  return end > begin ? seconds * std::clamp((now - begin) / (end - begin), 0.0, 1.0) : 0;
}

// Returns the actor's sections; one of every k-th step has 1/k of its seconds. `actor_of` is by
// rank. With `fold`, consecutive ops become one step, and so do ranges whose collectives have no
// other actor, end within the range and have no contention, also with transfers from before the
// range: the same times in fewer steps.
RankSteps steps_of(const Actor& actor, const std::map<int64_t, int32_t>& actor_of,
                   const mesh::Mesh& mesh, OpCosts& costs, Meetings& meetings, bool fold);

}  // namespace perigee::simulate
