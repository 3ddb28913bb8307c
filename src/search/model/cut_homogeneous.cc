// Cuts of the blocks into homogeneous stages of one part.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "schedule/description.h"
#include "schedule/schedule.h"
#include "search/cut/cut.h"
#include "search/model/cutter.h"
#include "search/model/pipeline/pipeline.h"

namespace perigee::search {
namespace {

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
constexpr int kKinds = 3;  // of stages: the first, those between, the last

// Returns StagePart::most of a stage with these costs: the microbatches in flight that it has
// memory for, divided by the schedule's microbatches per later stage; kAny where it has memory
// for all.
class FlightRoom {
 public:
  FlightRoom(const Choice& choice, double limit)
      : limit_(limit),
        slope_(schedule::describe(choice.schedule).flight_slope),
        all_(static_cast<int64_t>(std::ceil(in_flight(choice, choice.pipe - 1)))) {}

  int64_t operator()(const StageCosts& costs) const {
    const double room = limit_ - costs.fixed_bytes() - costs.prefetched_bytes;
    if (room < 0 || costs.optimizer_bytes > limit_) return 0;
    const auto most = costs.in_flight_bytes > 0
                          ? static_cast<int64_t>(std::min(1e9, room / costs.in_flight_bytes))
                          : all_;
    if (most >= all_) return kAny;
    return slope_ > 0 ? (most + slope_ - 1) / slope_ : 0;
  }

 private:
  const double limit_;
  // In-flight microbatches per later stage; 0: all stages have the same number.
  const int64_t slope_;
  const int64_t all_;  // in-flight microbatches of the first stage
};

}  // namespace

CutParts Cutter::cut_homogeneous(PricedStages& stages, const Window& window) const {
  const auto& choice = stages.choice();
  const auto& layers = stages.layers();
  const auto& rules = in_.rules;
  const int blocks = rules.blocks();
  const FlightRoom room(choice, stages.place(0).limit);
  const auto parts = [&](StageKind kind, int length) {
    const int index = kind == StageKind::first ? 0 : kind == StageKind::last ? 2 : 1;
    std::vector<StagePart> ways;
    for (int recomputed_blocks = 0; recomputed_blocks <= (layers.recomputing ? length : 0);
         ++recomputed_blocks) {
      const auto& one = stages.costs(0, rules.part({index, kKinds}, length, recomputed_blocks));
      const auto most = room(one);
      if (ways.empty() || most > ways.back().most)
        ways.push_back({one.pass(), most, recomputed_blocks});
      if (most == kAny) break;
    }
    return ways;
  };
  const auto allowed = [&](int begin, int end) {
    return allows(window, {begin, end, 0, begin == 0, end == blocks});
  };
  // With split backward passes only the longest stage counts. With one microbatch it counts once,
  // so that cuts differ.
  const bool split = splits_backward(choice.schedule);
  const auto rounds = split ? choice.microbatches : std::max<int64_t>(1, choice.microbatches - 1);
  const auto cut = search::cut({.blocks = blocks,
                                .stages = choice.pipe,
                                .microbatches = choice.microbatches,
                                .rounds = rounds,
                                .parts = parts,
                                .allowed = allowed,
                                .solver = in_.limits.solver,
                                .time_limit = seconds_left()});
  CutParts found;
  if (!cut) {
    const int even = static_cast<int>((blocks + choice.pipe - 1) / choice.pipe);
    const int recomputed_blocks = layers.recomputing ? even : 0, inner = even < blocks - 1 ? 1 : 0;
    const auto bytes = [&](int index) {
      const auto part = rules.part({index, kKinds}, even, recomputed_blocks);
      return stages.bytes_of(stages.count() - 1, stages.costs(0, part));
    };
    found.least_bytes = std::min(bytes(2), bytes(inner));
    return found;
  }
  found.best = cut->best;
  std::vector<int> lengths;
  for (int begin = 0; const int end : cut->begins) {
    lengths.push_back(end - begin);
    begin = end;
  }
  lengths.push_back(blocks - cut->begins.back());
  found.parts = rules.consecutive(lengths, cut->recomputed_blocks);
  return found;
}

}  // namespace perigee::search
