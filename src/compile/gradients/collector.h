// Collects a microbatch's gradients into their buckets, which are reduced over ranks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compile/draft/draft.h"
#include "compile/draft/lower.h"
#include "compile/draft/source.h"
#include "compile/gradients/gradients.h"
#include "compile/gradients/reductions.h"

namespace perigee::compile {

// Appends self = source * scale in the first microbatch, self += source * scale in the others.
void add_up(std::vector<DraftInstruction>& out, const Draft& draft, ValueId self, ValueId source,
            double scale);

// Writes gradients into their buckets and reduces the buckets.
class Collector {
 public:
  // Makes ops write gradients without other readers into their buckets. Keeps all by reference.
  Collector(Draft& draft, const Source& source, const Gradients& gradients, Lowering& lowering);

  // Called at a section's start: announces its reductions.
  void begin(size_t section, Reductions& reductions);

  // Called after the node that makes the graph value: handles the gradients that it is.
  void gradient_ready(graph::ValueId v, std::vector<DraftInstruction>& out);

  // Called at a section's end: starts the reductions of reduced_at_end() and, in the last section,
  // handles gradients that no node makes.
  void finish(std::vector<DraftInstruction>& out);

 private:
  using Instructions = std::vector<DraftInstruction>;

  struct Scattered {
    int32_t bucket = -1;
    ValueId part;
    int32_t event = -1;
    uint8_t runs = kAlways;
  };

  bool several() const { return draft_.program.microbatches > 1; }
  bool is_reduced(int32_t b) const;
  // Returns whether a unit's gradients are reduced in every microbatch and its parts are summed:
  // those of units that store gradients in parts.
  bool reduced_each_time(int32_t b) const { return gradients_.buckets[b].level >= 2; }
  bool adds_up(int32_t b) const { return several() && !reduced_each_time(b); }
  // Returns whether the bucket is reduced at the end of the backward pass. Gradients that are
  // stored in parts are not, since all of them would be in memory unsharded.
  bool reduced_at_end(int32_t b) const;
  void reduce(int32_t b, Instructions& out);
  void start(int32_t b, Instructions& out);
  // Starts a reduce-scatter and waits for that of the preceding unit, whose memory is then free.
  // The flat tensors of one unit (of several types or cuts) are in flight together.
  void scatter(int32_t b, Instructions& out);
  void end_scatters(Instructions& out);
  void end_scatter(const Scattered& scattered, Instructions& out);

  Draft& draft_;
  const Source& source_;
  const Gradients& gradients_;
  Lowering& lowering_;
  size_t section_ = 0;
  Reductions* reductions_ = nullptr;                 // of the section
  std::map<int32_t, std::vector<size_t>> by_value_;  // parameters by gradient
  std::vector<graph::ValueId> origins_;  // per parameter: the result of the gradient's op
  std::vector<size_t> missing_;          // per bucket: gradients that are not ready
  std::vector<size_t> numbers_;          // per bucket: of its reduction
  std::vector<int32_t> late_;            // buckets to reduce at the section's end
  std::vector<Scattered> scattered_;     // reduce-scatters in flight
};

}  // namespace perigee::compile
