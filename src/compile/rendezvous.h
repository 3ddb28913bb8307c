// How many microbatches at once a part of a pipeline has memory for, so that no stages wait for
// each other for ever.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "compile/frame_pools.h"
#include "cost/schedule.h"
#include "cost/schedule_turns.h"

namespace perigee::compile {

// By stage and position in its order: with which others an op runs in turns (turns_of).
using Turns = std::vector<std::vector<Span>>;

// Returns what runs in turns on all stages of a schedule: what turns_of says where one of the two
// parts is one of `exchanging`, but for ops that would wait for each other for ever.
Turns find_turns(const Schedule& schedule, const std::set<std::pair<int, int>>& edges,
                 const std::set<int>& exchanging);

// Returns for each span, from the first to the last of a stage's ops that use the frame of a part
// for a microbatch, which copy of the frame it has: the one that has been free for the longest, of
// `count` or as many as it takes. Spans come in the order of their first ops.
std::vector<int32_t> assign_copies(const std::vector<Span>& spans, int64_t count);

// Returns by microbatch whether it keeps what others compute again, where at most `count` in flight
// on the stage do: from a microbatch's first op to its last one, whoever comes first.
std::vector<bool> kept_microbatches(const std::vector<PipelineOp>& order, int64_t microbatches,
                                    int64_t count);

// Copies of a part's frame, or of that of its pool: for microbatches that compute again, and for
// those that keep. On stages on which all do the same, `again` are all there are.
struct PartCopies {
  int64_t again = 1;
  int64_t kept = 0;
};

// Of microbatches that compute again, and of those that keep. Empty: no part shares its frame.
struct PoolsOfFrames {
  FramePools again, kept;
};

// Returns how many copies each part's frame has, by part: as many as its stage's order uses at
// once, and where stages would wait for each other, all of them one more, as often as it takes. A
// forward pass waits until the gradients have been received that were sent out of its copy of the
// frame; a backward pass until its microbatch's activations have been. Receivers come to their
// messages in the order of their stage. `edges` are pairs of parts of which the second uses what
// the first makes. Ops that run in turns are all under way from the first to the last. Parts of a
// pool take their copies from the same ones, of which there is one more than is in flight, so that
// a forward pass need not wait for what the stage has just sent.
std::vector<PartCopies> copies_of_parts(const Schedule& schedule,
                                        const std::set<std::pair<int, int>>& edges,
                                        const Turns& turns, int64_t kept = 0,
                                        const PoolsOfFrames& pools = {});

// The same for many stages of one schedule, which ask alike: found once. Of any threads.
class Rendezvous {
 public:
  const std::vector<PartCopies>& copies(const Schedule& schedule,
                                        const std::set<std::pair<int, int>>& edges,
                                        const Turns& turns, int64_t kept,
                                        const PoolsOfFrames& pools);

 private:
  struct Asked {
    std::set<std::pair<int, int>> edges;
    Turns turns;
    int64_t kept = 0;
    PoolsOfFrames pools;
    std::vector<PartCopies> copies;
  };
  std::mutex mutex_;
  std::list<Asked> known_;
};

}  // namespace perigee::compile
