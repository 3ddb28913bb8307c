// Rotary positions (Su et al. 2021) written out: pairs (x[i], x[i + d/2]) rotated by angles whose
// cosines and sines are given. The backward ops are those that LibTorch's autograd makes.
#include "graph/rewrite/sketch.h"

namespace perigee::graph {
namespace {

// Batch, heads, positions, and the dim whose two halves are the pairs.
const Shape kX = {1009, 1013, 1019, 1021}, kHalf = {1009, 1013, 1019, 1031}, kAngles = {1019, 1021};
constexpr int64_t kWidth = 1031;  // of a half
constexpr int64_t kDim = 3;

// x * cos + cat(-x2, x1) * sin.
Graph rotary() {
  Sketch s;
  const auto x = s.parameter("x", kX), cos = s.data("cos", kAngles), sin = s.data("sin", kAngles),
             g = s.data("gradient:y", kX);
  const TensorType half{DType::float32, kHalf};
  const auto halves = s.graph.add_node(
      "aten::split.Tensor", {{"self", x}, {"split_size", kWidth}, {"dim", kDim}}, {half, half});
  const auto minus = s.op("aten::neg", {{"self", halves[1]}}, kHalf);
  const auto rotated = s.op(
      "aten::cat", {{"tensors", std::vector<ValueId>{minus, halves[0]}}, {"dim", kDim}}, kX);
  const auto by_sin = s.op("aten::mul.Tensor", Sketch::both(rotated, sin), kX);
  const auto by_cos = s.op("aten::mul.Tensor", Sketch::both(x, cos), kX);
  const auto y = s.op("aten::add.Tensor", Sketch::both(by_cos, by_sin), kX);
  s.result(y);
  const auto to_x = s.back(by_cos, "aten::mul.Tensor", Sketch::both(g, cos), kX);
  const auto to_rotated = s.back(by_sin, "aten::mul.Tensor", Sketch::both(g, sin), kX);
  const auto first = s.back(rotated, "aten::slice.Tensor",
                            {{"self", to_rotated}, {"dim", kDim}, {"end", kWidth}}, kHalf);
  const auto second = s.back(rotated, "aten::slice.Tensor",
                             {{"self", to_rotated}, {"dim", kDim}, {"start", kWidth}}, kHalf);
  const auto back = s.back(minus, "aten::neg", {{"self", first}}, kHalf);
  const auto joined = s.back(halves[0], "aten::cat",
                             {{"tensors", std::vector<ValueId>{second, back}}, {"dim", kDim}}, kX);
  s.gradient("x", s.back(halves[0], "aten::add.Tensor", Sketch::both(to_x, joined), kX));
  return std::move(s.graph);
}

Graph fused_rotary() {
  Sketch s;
  const auto x = s.parameter("x", kX), cos = s.data("cos", kAngles), sin = s.data("sin", kAngles),
             g = s.data("gradient:y", kX);
  const auto y = s.op("perigee::rotary", {{"self", x}, {"cos", cos}, {"sin", sin}}, kX);
  s.result(y);
  s.gradient("x",
             s.back(y, "perigee::rotary_backward", {{"grad", g}, {"cos", cos}, {"sin", sin}}, kX));
  return std::move(s.graph);
}

}  // namespace

void add_rotary_fusions(std::vector<RewriteRule>& rules) {
  rules.push_back({"rotary", rotary(), fused_rotary()});
}

}  // namespace perigee::graph
