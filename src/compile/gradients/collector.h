// Where a microbatch's gradients go: into their buckets, which are reduced over ranks.
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

// The gradients' way into their buckets, and the buckets' reduction.
class Collector {
 public:
  // Has ops write gradients in place that nobody else reads. All are kept by reference.
  Collector(Draft& draft, const Source& source, const Gradients& gradients, Lowering& lowering);

  // Announces the reductions of the section that begins.
  void begin(size_t section, Reductions& reductions);

  // Called when the graph value is there.
  void arrived(graph::ValueId v, std::vector<DraftInstruction>& out);

  // Called at a section's end: reductions that were put off, and in the last one gradients that no
  // node makes.
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
  // Units whose gradients are kept in parts are reduced in every microbatch; then the parts add up.
  bool reduced_each_time(int32_t b) const { return gradients_.buckets[b].level >= 2; }
  bool adds_up(int32_t b) const { return several() && !reduced_each_time(b); }
  // Reduced at the end of the backward pass. What is kept in parts is not: it would all be whole.
  bool put_off(int32_t b) const;
  void reduce(int32_t b, Instructions& out);
  void start(int32_t b, Instructions& out);
  // Starts reducing, and waits for the unit before, whose memory is then free. A unit's flat
  // tensors, of several types or cuts, come together and are under way together.
  void scatter(int32_t b, Instructions& out);
  void end_scatters(Instructions& out);
  void end_scatter(const Scattered& scattered, Instructions& out);

  Draft& draft_;
  const Source& source_;
  const Gradients& gradients_;
  Lowering& lowering_;
  size_t section_ = 0;
  Reductions* reductions_ = nullptr;  // of the section
  std::map<int32_t, std::vector<size_t>>
      by_value_;                         // parameters by the graph value of their gradient
  std::vector<graph::ValueId> origins_;  // per parameter: what its op makes
  std::vector<size_t> missing_;          // per bucket
  std::vector<size_t> numbers_;          // per bucket: of its reduction
  std::vector<int32_t> late_;
  std::vector<Scattered> scattered_;  // their reductions have started
};

}  // namespace perigee::compile
