// Layer norm (Ba et al. 2016) and RMS norm (Zhang and Sennrich 2019) written out. The backward ops
// are those that LibTorch's autograd makes of the forward ones.
#include "graph/rewrite/sketch.h"

namespace perigee::graph {
namespace {

const Shape kNormed = {1009, 1013}, kOne = {1009, 1}, kRow = {1, 1013}, kWeight = {1013};
constexpr int64_t kNormedWidth = 1013;

enum class Square { power, product };
enum class Root { rsqrt, sqrt };
enum class Center { once, twice, var };

ValueId square(Sketch& s, Square how, ValueId x) {
  return how == Square::power
             ? s.op("aten::pow.Tensor_Scalar", {{"self", x}, {"exponent", int64_t{2}}}, kNormed)
             : s.op("aten::mul.Tensor", Sketch::both(x, x), kNormed);
}

ValueId mean(Sketch& s, ValueId x) {
  return s.op("aten::mean.dim", {{"self", x}, {"dim", Shape{1}}, {"keepdim", true}}, kOne);
}

ValueId sum_back(Sketch& s, ValueId of, ValueId g, int64_t dim) {
  return s.back(of, "aten::sum.dim_IntList", {{"self", g}, {"dim", Shape{dim}}, {"keepdim", true}},
                dim == 0 ? kRow : kOne);
}

ValueId mean_back(Sketch& s, ValueId of, ValueId g) {
  const auto wide = s.back(of, "perigee::expand", {{"self", g}}, kNormed);
  return s.back(of, "aten::div.Scalar", Sketch::with(wide, kNormedWidth), kNormed);
}

// Returns the terms of the gradient of the squared operand.
std::vector<ValueId> square_back(Sketch& s, Square how, ValueId squared, ValueId x, ValueId g) {
  if (how == Square::product) {
    const auto self = s.back(squared, "aten::mul.Tensor", Sketch::both(g, x), kNormed);
    const auto other = s.back(squared, "aten::mul.Tensor", Sketch::both(g, x), kNormed);
    return {other, self};
  }
  const auto power = s.back(squared, "aten::pow.Tensor_Scalar", {{"self", x}, {"exponent", 1.0}},
                            kNormed);
  const auto twice = s.back(squared, "aten::mul.Scalar", Sketch::with(power, 2.0), kNormed);
  return {s.back(squared, "aten::mul.Tensor", Sketch::both(g, twice), kNormed)};
}

// x / sqrt(variance + eps): a product with rsqrt, or a quotient by sqrt.
struct Scaled {
  ValueId root, value;
};
Scaled scale(Sketch& s, Root how, ValueId x, ValueId variance) {
  const auto stabilised = s.op("aten::add.Scalar", Sketch::with(variance, std::string("?eps")),
                               kOne);
  Scaled scaled;
  if (how == Root::rsqrt) {
    scaled.root = s.op("aten::rsqrt", {{"self", stabilised}}, kOne);
    scaled.value = s.op("aten::mul.Tensor", Sketch::both(x, scaled.root), kNormed);
  } else {
    scaled.root = s.op("aten::sqrt", {{"self", stabilised}}, kOne);
    scaled.value = s.op("aten::div.Tensor", Sketch::both(x, scaled.root), kNormed);
  }
  return scaled;
}

// The gradients of x and of the variance.
struct ScaledBack {
  ValueId x, variance;
};
ScaledBack scale_back(Sketch& s, Root how, const Scaled& scaled, ValueId x, ValueId g) {
  const auto [root, value] = scaled;
  if (how == Root::rsqrt) {
    const auto to_root = s.back(value, "aten::mul.Tensor", Sketch::both(g, x), kNormed);
    const auto to_x = s.back(value, "aten::mul.Tensor", Sketch::both(g, root), kNormed);
    const auto sum = sum_back(s, value, to_root, 1);
    const auto cube = s.back(root, "aten::pow.Tensor_Scalar",
                             {{"self", root}, {"exponent", int64_t{3}}}, kOne);
    const auto half = s.back(root, "aten::mul.Scalar", Sketch::with(sum, -0.5), kOne);
    return {to_x, s.back(root, "aten::mul.Tensor", Sketch::both(half, cube), kOne)};
  }
  const auto quotient = s.back(value, "aten::div.Tensor", Sketch::both(x, root), kNormed);
  const auto slope = s.back(value, "aten::div.Tensor", Sketch::both(quotient, root), kNormed);
  const auto minus = s.back(value, "aten::neg", {{"self", g}}, kNormed);
  const auto to_root = s.back(value, "aten::mul.Tensor", Sketch::both(minus, slope), kNormed);
  const auto to_x = s.back(value, "aten::div.Tensor", Sketch::both(g, root), kNormed);
  const auto sum = sum_back(s, value, to_root, 1);
  const auto twice = s.back(root, "aten::mul.Scalar", Sketch::with(root, int64_t{2}), kOne);
  return {to_x, s.back(root, "aten::div.Tensor", Sketch::both(sum, twice), kOne)};
}

ValueId add_back(Sketch& s, ValueId of, ValueId a, ValueId b, const Shape& shape = kNormed) {
  return s.back(of, "aten::add.Tensor", Sketch::both(a, b), shape);
}

// The gradient of a weight or bias: the sum over all dims but the last.
ValueId row_back(Sketch& s, ValueId of, ValueId g) {
  return s.back(of, "perigee::reshape", {{"self", sum_back(s, of, g, 0)}}, kWeight);
}

Graph layer_norm(Center center, Square how, Root root) {
  Sketch s;
  const auto x = s.parameter("x", kNormed), w = s.parameter("weight", kWeight),
             b = s.parameter("bias", kWeight), g = s.data("gradient:y", kNormed);
  const auto middle = mean(s, x);
  const auto sub = [&] { return s.op("aten::sub.Tensor", Sketch::both(x, middle), kNormed); };
  ValueId first, squared, variance;
  if (center == Center::var) {
    variance = s.op("aten::var.correction",
                    {{"self", x}, {"dim", Shape{1}}, {"correction", int64_t{0}}, {"keepdim", true}},
                    kOne);
  } else {
    first = sub();
    squared = square(s, how, first);
    variance = mean(s, squared);
  }
  const auto centered = center == Center::once ? first : sub();
  const auto scaled = scale(s, root, centered, variance);
  const auto weighted = s.op("aten::mul.Tensor", Sketch::both(scaled.value, w), kNormed);
  const auto y = s.op("aten::add.Tensor", Sketch::both(weighted, b), kNormed);
  s.result(y);

  s.gradient("bias", row_back(s, y, g));
  s.gradient("weight", row_back(s, weighted,
                                s.back(weighted, "aten::mul.Tensor", Sketch::both(g, scaled.value),
                                       kNormed)));
  const auto in = s.back(weighted, "aten::mul.Tensor", Sketch::both(g, w), kNormed);
  const auto back = scale_back(s, root, scaled, centered, in);
  ValueId sum = back.x, to_middle;
  const auto through_sub = [&](ValueId of, ValueId gradient) {
    return sum_back(s, of, s.back(of, "aten::neg", {{"self", gradient}}, kNormed), 1);
  };
  if (center == Center::var) {
    const auto mean = s.back(variance, "aten::mean.dim",
                             {{"self", x}, {"dim", Shape{1}}, {"keepdim", true}}, kOne);
    const auto distance = s.back(variance, "aten::sub.Tensor", Sketch::both(x, mean), kNormed);
    const auto part = s.back(variance, "aten::mul.Scalar",
                             Sketch::with(back.variance, std::string("?two_over_n")), kOne);
    to_middle = through_sub(centered, back.x);
    sum = add_back(s, variance, sum,
                   s.back(variance, "aten::mul.Tensor", Sketch::both(part, distance), kNormed));
  } else {
    const auto spread = mean_back(s, variance, back.variance);
    auto terms = square_back(s, how, squared, first, spread);
    if (center == Center::once) {
      for (const auto term : terms) sum = add_back(s, squared, sum, term);
      to_middle = through_sub(first, sum);
    } else {
      auto inner = terms[0];
      for (size_t t = 1; t < terms.size(); ++t) inner = add_back(s, squared, inner, terms[t]);
      to_middle = add_back(s, first, through_sub(centered, back.x), through_sub(first, inner),
                           kOne);
      sum = add_back(s, first, sum, inner);
    }
  }
  s.gradient("x", add_back(s, middle, sum, mean_back(s, middle, to_middle)));
  return std::move(s.graph);
}

Graph fused_layer_norm() {
  Sketch s;
  const auto x = s.parameter("x", kNormed), w = s.parameter("weight", kWeight),
             b = s.parameter("bias", kWeight), g = s.data("gradient:y", kNormed);
  const TensorType whole{DType::float32, kNormed}, one{DType::float32, kOne},
      weight{DType::float32, kWeight};
  const auto made = s.graph.add_node("aten::native_layer_norm",
                                     {{"input", x},
                                      {"normalized_shape", Shape{kNormedWidth}},
                                      {"weight", w},
                                      {"bias", b},
                                      {"eps", std::string("?eps")}},
                                     {whole, one, one});
  s.result(made[0]);
  const auto back = s.several(made[0], "aten::native_layer_norm_backward",
                              {{"grad_out", g},
                               {"input", x},
                               {"normalized_shape", Shape{kNormedWidth}},
                               {"mean", made[1]},
                               {"rstd", made[2]},
                               {"weight", w},
                               {"bias", b},
                               {"output_mask", std::vector<bool>{true, true, true}}},
                              {whole, weight, weight});
  s.gradient("x", back[0]);
  s.gradient("weight", back[1]);
  s.gradient("bias", back[2]);
  return std::move(s.graph);
}

Graph rms_norm(Square how, Root root) {
  Sketch s;
  const auto x = s.parameter("x", kNormed), w = s.parameter("weight", kWeight),
             g = s.data("gradient:y", kNormed);
  const auto squared = square(s, how, x);
  const auto variance = mean(s, squared);
  const auto scaled = scale(s, root, x, variance);
  const auto y = s.op("aten::mul.Tensor", Sketch::both(scaled.value, w), kNormed);
  s.result(y);
  s.gradient("weight",
             row_back(s, y, s.back(y, "aten::mul.Tensor", Sketch::both(g, scaled.value), kNormed)));
  const auto in = s.back(y, "aten::mul.Tensor", Sketch::both(g, w), kNormed);
  const auto back = scale_back(s, root, scaled, x, in);
  auto sum = back.x;
  const auto spread = mean_back(s, variance, back.variance);
  for (const auto term : square_back(s, how, squared, x, spread)) {
    sum = add_back(s, squared, sum, term);
  }
  s.gradient("x", sum);
  return std::move(s.graph);
}

Graph fused_rms_norm() {
  Sketch s;
  const auto x = s.parameter("x", kNormed), w = s.parameter("weight", kWeight),
             g = s.data("gradient:y", kNormed);
  const TensorType whole{DType::float32, kNormed};
  const auto made = s.graph.add_node("perigee::rms_norm",
                                     {{"self", x}, {"weight", w}, {"eps", std::string("?eps")}},
                                     {whole, {DType::float64, kOne}});
  s.result(made[0]);
  const auto back = s.several(made[0], "perigee::rms_norm_backward",
                              {{"grad", g}, {"self", x}, {"weight", w}, {"rstd", made[1]}},
                              {whole, {DType::float32, kWeight}});
  s.gradient("x", back[0]);
  s.gradient("weight", back[1]);
  return std::move(s.graph);
}

}  // namespace

void add_norm_fusions(std::vector<RewriteRule>& rules) {
  for (const auto root : {Root::rsqrt, Root::sqrt}) {
    for (const auto how : {Square::power, Square::product}) {
      for (const auto center : {Center::once, Center::twice}) {
        rules.push_back({"layer_norm", layer_norm(center, how, root), fused_layer_norm()});
      }
    }
    rules.push_back(
        {"layer_norm", layer_norm(Center::var, Square::power, root), fused_layer_norm()});
  }
  for (const auto root : {Root::rsqrt, Root::sqrt}) {
    for (const auto how : {Square::power, Square::product}) {
      rules.push_back({"rms_norm", rms_norm(how, root), fused_rms_norm()});
    }
  }
}

}  // namespace perigee::graph
