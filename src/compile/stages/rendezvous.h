// The number of copies of each part's microbatch frame with which the stages of a pipeline do
// not deadlock.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "compile/stages/frame_pools.h"
#include "plan/plan.h"
#include "schedule/interleave.h"
#include "schedule/schedule.h"

namespace perigee::compile {

// By stage and position in its order: the range of ops with which the op is
// interleaved (interleaved_ranges).
using InterleavedOps = std::vector<std::vector<InterleavedRange>>;

// Returns the interleaved ops of all stages of a schedule: interleaved_ranges where one of the two
// parts is one of `exchanging`, except ops that would deadlock.
InterleavedOps find_interleaved_ops(const Schedule& schedule,
                                    const std::set<std::pair<int, int>>& edges,
                                    const std::set<int>& exchanging);

// Returns the copy of the frame for each span (from the first to the last of a stage's ops that use
// a part's frame for a microbatch): the copy that has been free for the longest, of `count` or as
// many as are needed. Spans are sorted by their first ops.
std::vector<int32_t> assign_copies(const std::vector<InterleavedRange>& spans, int64_t count);

// Returns by microbatch whether it keeps results that others recompute: in the order of their first
// ops, each that begins while fewer than `count` such microbatches are in flight on the stage.
std::vector<bool> kept_microbatches(const std::vector<PipelineOp>& order, int64_t microbatches,
                                    int64_t count);

// Returns the stage of a rank.
int64_t stage_of(const plan::Plan& plan, int64_t rank);

// Returns how many of the microbatches on the rank's stage keep their results.
enum class Kept : uint8_t { none, some, all };
Kept kept_on_stage(const plan::Plan& plan, const Schedule& schedule, int64_t rank);

// Copies of a part's frame, or of its pool's frame: for microbatches that recompute, and for those
// that keep their results. On stages on which all do the same, `recomputed` counts all of them.
struct PartCopies {
  int64_t recomputed = 1;
  int64_t kept = 0;
};

// Pools of microbatches that recompute, and of those that keep their results. Empty: no part shares
// its frame.
struct PoolsOfFrames {
  FramePools recomputed, kept;
};

// Returns the number of copies of each part's frame, by part: as many as its stage's order uses at
// once; while stages deadlock, all of their parts get one more. A forward pass waits until the
// gradients that were sent from its copy of the frame are received; a backward pass until its
// microbatch's activations are. Stages receive messages in their own order. `edges` are pairs
// of parts of which the second uses results of the first. Interleaved ops are all in progress from
// the first to the last. Parts of a pool share copies, one more than are in flight, so that a
// forward pass need not wait for the stage's last send.
std::vector<PartCopies> copies_of_parts(const Schedule& schedule,
                                        const std::set<std::pair<int, int>>& edges,
                                        const InterleavedOps& interleaved, int64_t kept = 0,
                                        const PoolsOfFrames& pools = {});

// A cache of copies_of_parts() for the ranks of one plan. Thread-safe.
class Rendezvous {
 public:
  const std::vector<PartCopies>& copies(const Schedule& schedule,
                                        const std::set<std::pair<int, int>>& edges,
                                        const InterleavedOps& interleaved, int64_t kept,
                                        const PoolsOfFrames& pools);

 private:
  struct Asked {
    std::set<std::pair<int, int>> edges;
    InterleavedOps interleaved;
    int64_t kept = 0;
    PoolsOfFrames pools;
    std::vector<PartCopies> copies;
  };
  std::mutex mutex_;
  std::list<Asked> known_;
};

}  // namespace perigee::compile
