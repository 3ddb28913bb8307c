#include "data/documents/masking.h"

#include <algorithm>

#include "exec/ops/random.h"

namespace perigee::data {
namespace {

constexpr double kHidden = 0.15, kMask = 0.8, kRandom = 0.9;
constexpr uint32_t kTraining = 5, kHeldOut = 6;  // purposes, distinct from those of other draws

double uniform(uint32_t word) { return (word + 0.5) * 0x1p-32; }

}  // namespace

void hide_tokens(const Masking& masking, int64_t sample, int64_t sequence, int64_t length,
                 const Row& row) {
  std::fill_n(row.labels, sequence, kIgnored);
  const auto number = static_cast<uint64_t>(sample);
  const auto draw = [&](int64_t i) {
    return exec::philox(
        {static_cast<uint32_t>(i), static_cast<uint32_t>(number),
         static_cast<uint32_t>(number >> 32), masking.held_out ? kHeldOut : kTraining},
        {static_cast<uint32_t>(masking.seed), static_cast<uint32_t>(masking.seed >> 32)});
  };
  const auto hide = [&](int64_t i) {
    auto& token = row.tokens[i];
    row.labels[i] = token;
    const auto words = draw(i);
    const auto choice = uniform(words[1]);
    if (choice < kMask) {
      token = masking.mask;
    } else if (choice < kRandom) {
      token = static_cast<int64_t>(uint64_t{words[2]} * static_cast<uint64_t>(masking.vocab) >> 32);
    }
  };
  int64_t first = -1;  // the token that is chosen before all others
  uint32_t least = 0;
  for (int64_t i = 0; i < length; ++i) {
    if (masking.special.contains(row.tokens[i])) continue;
    const auto word = draw(i)[0];
    if (first < 0 || word < least) {
      first = i;
      least = word;
    }
    if (uniform(word) < kHidden) hide(i);
  }
  if (first >= 0 && uniform(least) >= kHidden) hide(first);
}

}  // namespace perigee::data
