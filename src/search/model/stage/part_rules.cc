#include "search/model/stage/part_rules.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace perigee::search {
namespace {

constexpr double kRounding = 1e-9;

}  // namespace

PartRules::PartRules(const Folded& folded, std::vector<int> starts, double balance)
    : folded_(folded), starts_(std::move(starts)), balance_(balance) {
  if (balance_ == 0) return;
  arithmetic_ = arithmetic_of(folded);
  arithmetic_.blocks.resize(static_cast<size_t>(blocks()));
  before_.resize(arithmetic_.blocks.size() + 1);
  std::partial_sum(arithmetic_.blocks.begin(), arithmetic_.blocks.end(), before_.begin() + 1);
}

double PartRules::arithmetic(const PartBlocks& part) const {
  return before_[static_cast<size_t>(part.end)] - before_[static_cast<size_t>(part.begin)] +
         (part.has_prologue ? arithmetic_.prologue : 0) +
         (part.has_epilogue ? arithmetic_.epilogue : 0);
}

bool PartRules::is_balanced(const std::vector<PartBlocks>& parts,
                            const std::vector<int>& stage_of) const {
  if (balance_ == 0 || parts.size() < 2) return true;
  std::vector<double> stages(stage_of.empty() ? parts.size() : 1 + std::ranges::max(stage_of));
  for (size_t k = 0; k < parts.size(); ++k) {
    stages[stage_of.empty() ? k : static_cast<size_t>(stage_of[k])] += arithmetic(parts[k]);
  }
  return std::ranges::min(stages) >= balance_ * std::ranges::max(stages) * (1 - kRounding);
}

std::vector<double> PartRules::smallest_stages(int64_t stages) const {
  const double all = before_.back() + arithmetic_.prologue + arithmetic_.epilogue;
  const double mean = all / static_cast<double>(stages);
  std::vector<double> found;
  for (int begin = 0; begin < blocks(); ++begin) {
    for (int end = begin + 1; end <= blocks(); ++end) {
      const double own = arithmetic({begin, end, 0, begin == 0, end == blocks()});
      // The largest stage has at least the mean, the smallest at most.
      if (own > mean * (1 + kRounding)) break;
      if (own >= balance_ * mean * (1 - kRounding)) found.push_back(own);
    }
  }
  std::ranges::sort(found);
  const auto near = [](double a, double b) { return b <= a * (1 + kRounding); };
  found.erase(std::unique(found.begin(), found.end(), near), found.end());
  return found;
}

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
