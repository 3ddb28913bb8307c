#include "train/generate/token_draw.h"

#include <ATen/ATen.h>

#include <map>

#include "tests/support/torch_test.h"

namespace perigee::train {
namespace {

// Returns how often each token is drawn of 4,000.
std::map<int64_t, int> counts(const DrawOptions& options, const at::Tensor& logits,
                              const std::vector<int64_t>& text = {}) {
  TokenDraw draw(options);
  std::map<int64_t, int> found;
  for (int i = 0; i < 4000; ++i) ++found[draw.next(logits, text)];
  return found;
}

const std::vector<double> kChances = {0.4, 0.3, 0.2, 0.1};

at::Tensor logits() { return at::tensor(kChances, at::kDouble).log(); }

TEST_CASE("tokens are drawn by their probabilities, repeatably") {
  const auto found = counts({.seed = 5}, logits());
  for (int64_t token = 0; token < 4; ++token) {
    CHECK(std::abs(found.at(token) / 4000.0 - kChances[size_t(token)]) < 0.03);
  }
  CHECK(counts({.seed = 5}, logits()) == found);
  CHECK(counts({.seed = 6}, logits()) != found);
}

TEST_CASE("temperature 0 takes the likeliest token, and a high one evens the chances") {
  CHECK(counts({.temperature = 0}, logits()) == std::map<int64_t, int>{{0, 4000}});
  CHECK(counts({.temperature = 100}, logits()).at(3) > 800);
}

TEST_CASE("top_k and top_p leave the unlikely tokens out") {
  CHECK(counts({.top_k = 2}, logits()).size() == 2);
  CHECK(counts({.top_p = 0.65}, logits()).size() == 2);
  // The token that reaches p is kept, hence one at least.
  CHECK(counts({.top_p = 0.7001}, logits()).size() == 3);
  CHECK(counts({.top_p = 1e-9}, logits()) == std::map<int64_t, int>{{0, 4000}});
  const auto two = counts({.top_p = 0.65}, logits());
  CHECK(std::abs(two.at(0) / 4000.0 - 4.0 / 7) < 0.03);
}

TEST_CASE("a repetition penalty makes tokens of the text less likely, whatever their sign") {
  const auto signs = at::tensor({1.0, 0.9, -0.1}, at::kDouble);
  CHECK(counts({.temperature = 0, .repetition_penalty = 1.2}, signs, {0, 0, 1}).contains(0));
  CHECK(counts({.temperature = 0, .repetition_penalty = 1.2}, signs, {0}).contains(1));
  const auto below = at::tensor({-1.0, -1.1}, at::kDouble);
  CHECK(counts({.temperature = 0, .repetition_penalty = 1.2}, below, {0}).contains(1));
}

}  // namespace
}  // namespace perigee::train
