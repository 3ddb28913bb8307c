// Programs as the simulator runs them: instructions with their times.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "compile/program.h"
#include "search/op_cost.h"

namespace perigee::search {

// Ranks that run one program on one kind of device.
struct Actor {
  const compile::Program* program = nullptr;
  int64_t rank = 0;  // the first of them
  int64_t alike = 0;
  std::map<std::string, int64_t> slowest = {};  // slowest_groups
};

// A collective of an actor's program.
struct Link {
  int32_t meeting = 0;          // equal where actors meet: their n-th of each are one
  std::vector<int32_t> actors;  // that take part, ascending; one: needs nobody else
  int level = -1;               // cost::level_of: where its bytes compete
  double seconds = 0;           // alone
  int32_t stream = 0;
};

struct Step {
  enum class Kind : uint8_t { compute, start, wait } kind = Kind::compute;
  double seconds = 0;                            // compute: in which the rank does nothing else
  double busy = 0;                               // compute: of them the stream works
  int32_t link = -1;                             // start: index into Steps::links
  int32_t event = -1;                            // start, wait
  const compile::Instruction* source = nullptr;  // where intervals are wanted
};

struct Steps {
  std::vector<std::vector<Step>> sections;
  std::vector<Link> links;
  std::vector<std::map<int32_t, double>> hidden;  // by section: busy seconds of streams whose
                                                  // collectives were folded into compute steps
  double seconds = 0, measured = 0;               // of all ops and collectives of a step, once each
};

// Numbers the places where actors meet.
class Meetings {
 public:
  int32_t number(const std::string& stream, const std::vector<int32_t>& actors);

 private:
  std::map<std::pair<std::string, std::vector<int32_t>>, int32_t> numbers_;
};

// Returns the actor's sections. `actor_of` is by rank. With `fold`, ops in a row become one step,
// and so do stretches whose collectives concern the actor alone, are waited for within, and never
// share a link: the same times in fewer steps.
Steps steps_of(const Actor& actor, const std::map<int64_t, int32_t>& actor_of,
               const mesh::Mesh& mesh, OpCosts& costs, Meetings& meetings, bool fold);

}  // namespace perigee::search
