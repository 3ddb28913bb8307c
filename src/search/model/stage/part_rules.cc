#include "search/model/stage/part_rules.h"

#include <algorithm>

namespace perigee::search {

int PartRules::blocks() const {
  return static_cast<int>(std::max<size_t>(1, folded_.blocks.size()));
}

PartBlocks PartRules::part(PartPosition position, int length, int recomputed_blocks) const {
  const bool first = position.index == 0, last = position.index == position.count - 1;
  const int begin = first ? 0 : last ? blocks() - length : 1;
  return {begin, begin + length, recomputed_blocks, first, last};
}

std::vector<PartBlocks> PartRules::consecutive(const std::vector<int>& lengths,
                                               const std::vector<int>& recomputed_blocks) const {
  std::vector<PartBlocks> parts;
  int begin = 0;
  for (size_t k = 0; k < lengths.size(); ++k) {
    const int end = begin + lengths[k];
    parts.push_back({begin, end, recomputed_blocks.empty() ? 0 : recomputed_blocks[k], k == 0,
                     k + 1 == lengths.size()});
    begin = end;
  }
  return parts;
}

std::vector<PartBlocks> PartRules::pinned() const {
  std::vector<int> lengths;
  int begin = 0;
  for (const int start : starts_) {
    lengths.push_back(start - begin);
    begin = start;
  }
  lengths.push_back(blocks() - begin);
  return consecutive(lengths);
}

bool PartRules::pins_end_without_block() const {
  return is_pinned() && (starts_.front() == 0 || starts_.back() == blocks());
}

int PartRules::fewest_first_blocks(const Layers& layers) const {
  return layers.prologue.weights > 0 ? 0 : 1;
}

int PartRules::fewest_last_blocks(const Layers& layers) const {
  return layers.epilogue.weights > 0 && !folded_.epilogue.empty() ? 0 : 1;
}

int PartRules::most_parts(const Layers& layers) const {
  return blocks() + 2 - fewest_first_blocks(layers) - fewest_last_blocks(layers);
}

}  // namespace perigee::search
