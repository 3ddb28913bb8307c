// The blocks that the parts of a pipeline have, and the numbers of blocks that they may have.
#pragma once

#include <cstdint>
#include <vector>

#include "search/layers/fold.h"
#include "search/layers/layers.h"

namespace perigee::search {

// The blocks [begin, end) of a part, of which the first `recomputed_blocks` are recomputed.
struct PartBlocks {
  int begin = 0, end = 0;
  int recomputed_blocks = 0;
  bool has_prologue = false, has_epilogue = false;
  int length() const { return end - begin; }
};

// The position of a part in forward order.
struct PartPosition {
  int index = 0;
  int count = 1;  // of all parts
};

class PartRules {
 public:
  // Keeps `folded` by reference. `starts`: the first block of each later part; empty: any.
  // `balance`: Pins::balance.
  PartRules(const Folded& folded, std::vector<int> starts, double balance = 0);

  // Returns the number of the model's blocks, at least 1.
  int blocks() const;

  // Returns `length` blocks of the part at this position.
  PartBlocks part(PartPosition position, int length, int recomputed_blocks = 0) const;

  // Returns all blocks, with prologue and epilogue.
  PartBlocks whole(int recomputed_blocks = 0) const {
    return {0, blocks(), recomputed_blocks, true, true};
  }

  // Returns consecutive parts of these lengths. `recomputed_blocks`: of each part, or empty.
  std::vector<PartBlocks> consecutive(const std::vector<int>& lengths,
                                      const std::vector<int>& recomputed_blocks = {}) const;

  // Returns whether the first block of each later part is pinned; the parts that then follow.
  bool is_pinned() const { return !starts_.empty(); }
  std::vector<PartBlocks> pinned() const;

  // Returns whether the pinned starts leave the first or the last part without a block.
  bool pins_end_without_block() const;

  // Returns the arithmetic of a part's forward pass.
  double arithmetic(const PartBlocks& part) const;

  // Returns whether the stages have the balance that is pinned. `stage_of`: of each part; empty:
  // each part is a stage.
  bool is_balanced(const std::vector<PartBlocks>& parts,
                   const std::vector<int>& stage_of = {}) const;

  // Returns the arithmetic that the smallest of so many stages of one part may have, ascending, in
  // cuts with the pinned balance. The largest has at most this divided by balance().
  std::vector<double> smallest_stages(int64_t stages) const;
  double balance() const { return balance_; }

  // Return the fewest blocks of the first, or of the last, of several parts of a stage: 0 where the
  // prologue, or the epilogue, has parameters, else 1.
  int fewest_first_blocks(const Layers& layers) const;
  int fewest_last_blocks(const Layers& layers) const;

  // Returns the most parts where stages have several: one a block, and one each for the prologue
  // and the epilogue where these have parameters.
  int most_parts(const Layers& layers) const;

 private:
  const Folded& folded_;
  const std::vector<int> starts_;
  const double balance_;
  Arithmetic arithmetic_;       // empty without a balance
  std::vector<double> before_;  // arithmetic of the blocks before each block, and of all
};

}  // namespace perigee::search
