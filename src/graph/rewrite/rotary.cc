// Rotary positions (Su et al. 2021) written out: pairs (x[i], x[i + d/2]) rotated by angles whose
// cosines and sines are given. The backward ops are those that LibTorch's autograd makes.
#include "graph/rewrite/sketch.h"

namespace perigee::graph {
namespace {

// Batch, heads, positions, and the dim whose two halves are the pairs.
const Shape kRotary = {1009, 1013, 1019, 1021}, kHalf = {1009, 1013, 1019, 1031},
            kAngles = {1019, 1021};
constexpr int64_t kHalfWidth = 1031;  // of a half
constexpr int64_t kDim = 3;

// x * cos + cat(-x2, x1) * sin.
Graph rotary() {
  Sketch s;
  const auto x = s.parameter("x", kRotary), cos = s.data("cos", kAngles),
             sin = s.data("sin", kAngles), g = s.data("gradient:y", kRotary);
  const TensorType half{DType::float32, kHalf};
  const auto halves = s.graph.add_node(
      "aten::split.Tensor", {{"self", x}, {"split_size", kHalfWidth}, {"dim", kDim}}, {half, half});
  const auto minus = s.op("aten::neg", {{"self", halves[1]}}, kHalf);
  const auto rotated = s.op(
      "aten::cat", {{"tensors", std::vector<ValueId>{minus, halves[0]}}, {"dim", kDim}}, kRotary);
  const auto by_sin = s.op("aten::mul.Tensor", Sketch::both(rotated, sin), kRotary);
  const auto by_cos = s.op("aten::mul.Tensor", Sketch::both(x, cos), kRotary);
  const auto y = s.op("aten::add.Tensor", Sketch::both(by_cos, by_sin), kRotary);
  s.result(y);
  const auto to_x = s.back(by_cos, "aten::mul.Tensor", Sketch::both(g, cos), kRotary);
  const auto to_rotated = s.back(by_sin, "aten::mul.Tensor", Sketch::both(g, sin), kRotary);
  const auto first = s.back(rotated, "aten::slice.Tensor",
                            {{"self", to_rotated}, {"dim", kDim}, {"end", kHalfWidth}}, kHalf);
  const auto second = s.back(rotated, "aten::slice.Tensor",
                             {{"self", to_rotated}, {"dim", kDim}, {"start", kHalfWidth}}, kHalf);
  const auto back = s.back(minus, "aten::neg", {{"self", first}}, kHalf);
  const auto joined = s.back(halves[0], "aten::cat",
                             {{"tensors", std::vector<ValueId>{second, back}}, {"dim", kDim}},
                             kRotary);
  s.gradient("x", s.back(halves[0], "aten::add.Tensor", Sketch::both(to_x, joined), kRotary));
  return std::move(s.graph);
}

Graph fused_rotary() {
  Sketch s;
  const auto x = s.parameter("x", kRotary), cos = s.data("cos", kAngles),
             sin = s.data("sin", kAngles), g = s.data("gradient:y", kRotary);
  const auto y = s.op("perigee::rotary", {{"self", x}, {"cos", cos}, {"sin", sin}}, kRotary);
  s.result(y);
  s.gradient("x", s.back(y, "perigee::rotary_backward", {{"grad", g}, {"cos", cos}, {"sin", sin}},
                         kRotary));
  return std::move(s.graph);
}

}  // namespace

void add_rotary_fusions(std::vector<RewriteRule>& rules) {
  rules.push_back({"rotary", rotary(), fused_rotary()});
}

}  // namespace perigee::graph
