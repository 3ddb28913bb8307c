#include "train/generate/token_draw.h"

#include <ATen/ATen.h>

#include <limits>

namespace perigee::train {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

}  // namespace

TokenDraw::TokenDraw(const DrawOptions& options) : options_(options), random_(options.seed) {
  check(options);
}

int64_t TokenDraw::next(const at::Tensor& logits, std::span<const int64_t> text) {
  auto scores = logits.to(at::kDouble).contiguous();
  if (options_.repetition_penalty != 1 && !text.empty()) {
    const auto seen = std::get<0>(
        at::_unique(at::tensor(c10::ArrayRef<int64_t>(text.data(), text.size()), at::kLong)));
    const auto own = scores.index_select(0, seen);
    scores = scores.index_copy(
        0, seen,
        at::where(own > 0, own / options_.repetition_penalty, own * options_.repetition_penalty));
  }
  if (options_.temperature == 0) return scores.argmax().item<int64_t>();
  scores = scores / options_.temperature;
  if (options_.top_k > 0 && options_.top_k < scores.numel()) {
    const auto least = std::get<0>(scores.topk(options_.top_k)).min();
    scores = scores.masked_fill(scores < least, kNever);
  }
  if (options_.top_p < 1) {
    const auto [sorted, order] = scores.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true);
    const auto chances = sorted.softmax(-1);
    // The token that reaches p is kept.
    const auto left_out = (chances.cumsum(-1) - chances) >= options_.top_p;
    scores = scores.index_copy(0, order, sorted.masked_fill(left_out, kNever));
  }
  const auto chances = scores.softmax(-1);
  auto left = std::generate_canonical<double, 53>(random_);
  const auto* chance = chances.const_data_ptr<double>();
  for (int64_t i = 0; i < chances.numel(); ++i) {
    left -= chance[i];
    if (left < 0) return i;
  }
  return chances.argmax().item<int64_t>();
}

}  // namespace perigee::train
