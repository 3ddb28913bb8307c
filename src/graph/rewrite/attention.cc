// Attention (Vaswani et al. 2017) written out as two batched products and a softmax.

#include "base/infinity.h"
#include "graph/rewrite/sketch.h"

namespace perigee::graph {
namespace {

constexpr int64_t kBatch = 1013, kHeads = 1019, kQueries = 1021, kKeys = 1031, kSize = 1033,
                  kValueSize = 1039, kMask0 = 1049, kMask1 = 1051;

enum class Scale { divide, multiply };
// The mask: an added one of [s, t] or four dims, a boolean one that fills with -inf, or the ops
// that compute a causal mask of the keys after the query.
enum class Mask { none, triu, tril, add2, add4, fill2, fill4 };

bool is_causal(Mask mask) { return mask == Mask::triu || mask == Mask::tril; }
bool adds(Mask mask) { return mask == Mask::add2 || mask == Mask::add4; }
bool fills(Mask mask) { return mask == Mask::fill2 || mask == Mask::fill4; }

struct Inputs {
  ValueId query, key, value, mask, gradient;
};

// Under a causal mask there are as many keys as queries.
int64_t keys_of(Mask mask) { return is_causal(mask) ? kQueries : kKeys; }

Inputs inputs(Sketch& s, Mask mask) {
  const auto keys = keys_of(mask);
  Inputs in;
  in.query = s.parameter("query", {kBatch, kHeads, kQueries, kSize});
  in.key = s.parameter("key", {kBatch, kHeads, keys, kSize});
  in.value = s.parameter("value", {kBatch, kHeads, keys, kValueSize});
  const Shape flat = {kQueries, keys}, whole = {kMask0, kMask1, kQueries, keys};
  if (adds(mask)) in.mask = s.data("mask", mask == Mask::add2 ? flat : whole);
  if (fills(mask)) in.mask = s.data("mask", mask == Mask::fill2 ? flat : whole, DType::boolean);
  in.gradient = s.data("gradient:y", {kBatch, kHeads, kQueries, kValueSize});
  return in;
}

Graph written_out(Scale scale, Mask mask) {
  Sketch s;
  auto in = inputs(s, mask);
  const int64_t keys = keys_of(mask), all = kBatch * kHeads;
  const Shape scores4 = {kBatch, kHeads, kQueries, keys}, scores3 = {all, kQueries, keys},
              mask2 = {kQueries, keys};
  const auto reshape = [&](ValueId v, Shape shape) {
    return s.op("perigee::reshape", {{"self", v}}, std::move(shape));
  };
  const auto transposed = s.op("aten::transpose.int",
                               {{"self", in.key}, {"dim0", int64_t{2}}, {"dim1", int64_t{3}}},
                               {kBatch, kHeads, kSize, keys});
  const auto q = reshape(in.query, {all, kQueries, kSize}),
             k = reshape(transposed, {all, kSize, keys});
  const auto product = s.op("aten::bmm", {{"self", q}, {"mat2", k}}, scores3);
  const auto scores = reshape(product, scores4);
  const std::string by = scale == Scale::divide ? "aten::div.Scalar" : "aten::mul.Scalar";
  const auto scaled = s.op(by, Sketch::with(scores, std::string("?scale")), scores4);
  auto masked = scaled;
  if (mask == Mask::triu) {
    const auto ones = s.op("perigee::full", {{"value", true}}, mask2, DType::boolean);
    in.mask = s.op("aten::triu", {{"self", ones}, {"diagonal", int64_t{1}}}, mask2, DType::boolean);
  } else if (mask == Mask::tril) {
    const auto ones = s.op("perigee::full", {{"value", 1.0}}, mask2);
    const auto lower = s.op("aten::tril", {{"self", ones}}, mask2);
    in.mask = s.op("aten::eq.Scalar", Sketch::with(lower, int64_t{0}), mask2, DType::boolean);
  }
  const bool filled = is_causal(mask) || fills(mask);
  if (adds(mask)) masked = s.op("aten::add.Tensor", Sketch::both(scaled, in.mask), scores4);
  if (filled) {
    masked = s.op("aten::masked_fill.Scalar",
                  {{"self", scaled}, {"mask", in.mask}, {"value", -kInfinity}}, scores4);
  }
  const auto weights = s.op(
      "aten::_softmax", {{"self", masked}, {"dim", int64_t{3}}, {"half_to_float", false}}, scores4);
  const auto w = reshape(weights, scores3), v = reshape(in.value, {all, keys, kValueSize});
  const auto mixed = s.op("aten::bmm", {{"self", w}, {"mat2", v}}, {all, kQueries, kValueSize});
  const auto y = reshape(mixed, {kBatch, kHeads, kQueries, kValueSize});
  s.result(y);

  const auto reshape_back = [&](ValueId of, ValueId g, Shape shape) {
    return s.back(of, "perigee::reshape", {{"self", g}}, std::move(shape));
  };
  const auto transpose_back = [&](ValueId of, ValueId g, Shape shape, int64_t dim = 1) {
    return s.back(of, "aten::transpose.int", {{"self", g}, {"dim0", dim}, {"dim1", dim + 1}},
                  std::move(shape));
  };
  const auto bmm_back = [&](ValueId of, ValueId a, ValueId b, Shape shape) {
    return s.back(of, "aten::bmm", {{"self", a}, {"mat2", b}}, std::move(shape));
  };
  const auto g = reshape_back(y, in.gradient, {all, kQueries, kValueSize});
  const auto to_v = bmm_back(mixed, transpose_back(mixed, w, {all, keys, kQueries}), g,
                             {all, keys, kValueSize});
  s.gradient("value", reshape_back(v, to_v, {kBatch, kHeads, keys, kValueSize}));
  const auto to_w = bmm_back(mixed, g, transpose_back(mixed, v, {all, kValueSize, keys}), scores3);
  auto to_scores = s.back(weights, "aten::_softmax_backward_data",
                          {{"grad_output", reshape_back(w, to_w, scores4)},
                           {"output", weights},
                           {"dim", int64_t{3}},
                           {"input_dtype", DType::float32}},
                          scores4);
  if (filled) {
    to_scores = s.back(masked, "aten::masked_fill.Scalar",
                       {{"self", to_scores}, {"mask", in.mask}, {"value", int64_t{0}}}, scores4);
  }
  to_scores = s.back(scaled, by, Sketch::with(to_scores, std::string("?scale")), scores4);
  const auto to_product = reshape_back(scores, to_scores, scores3);
  const auto to_k = bmm_back(product, transpose_back(product, q, {all, kSize, kQueries}),
                             to_product, {all, kSize, keys});
  const auto to_q = bmm_back(product, to_product, transpose_back(product, k, {all, keys, kSize}),
                             {all, kQueries, kSize});
  s.gradient("query", reshape_back(q, to_q, {kBatch, kHeads, kQueries, kSize}));
  s.gradient("key", transpose_back(transposed, reshape_back(k, to_k, {kBatch, kHeads, kSize, keys}),
                                   {kBatch, kHeads, keys, kSize}, 2));
  return std::move(s.graph);
}

Graph fused(Scale scale, Mask mask) {
  Sketch s;
  const auto in = inputs(s, mask);
  const auto keys = keys_of(mask);
  const Shape four = {1, 1, kQueries, keys};
  ValueId bias = in.mask;
  if (fills(mask)) {
    const auto& shape = s.graph.type(in.mask).shape;
    const auto zeros = s.op("perigee::full", {{"value", 0.0}}, shape);
    bias = s.op("aten::masked_fill.Scalar",
                {{"self", zeros}, {"mask", in.mask}, {"value", -kInfinity}}, shape);
  }
  if (mask == Mask::add2 || mask == Mask::fill2) {
    bias = s.op("perigee::reshape", {{"self", bias}}, four);
  }
  const std::string by = scale == Scale::divide ? "1/?scale" : "?scale";
  const TensorType whole{DType::float32, {kBatch, kHeads, kQueries, kValueSize}};
  Args args = {{"query", in.query}, {"key", in.key}, {"value", in.value}};
  if (bias.defined()) args.emplace_back("bias", bias);
  Args back_args = args;
  if (is_causal(mask)) args.emplace_back("causal", true);
  args.emplace_back("scale", by);
  const auto made = s.graph.add_node("perigee::attention", args,
                                     {whole, {DType::float64, {kBatch, kHeads, kQueries}}});
  s.result(made[0]);
  back_args.insert(back_args.begin(), {"grad", in.gradient});
  back_args.emplace_back("output", made[0]);
  back_args.emplace_back("logsumexp", made[1]);
  if (is_causal(mask)) back_args.emplace_back("causal", true);
  back_args.emplace_back("scale", by);
  const auto back = s.several(
      made[0], "perigee::attention_backward", back_args,
      {s.graph.type(in.query), s.graph.type(in.key), s.graph.type(in.value)});
  s.gradient("query", back[0]);
  s.gradient("key", back[1]);
  s.gradient("value", back[2]);
  return std::move(s.graph);
}

}  // namespace

void add_attention_fusions(std::vector<RewriteRule>& rules) {
  // Rules with a more specific mask come first.
  for (const auto mask :
       {Mask::triu, Mask::tril, Mask::fill2, Mask::fill4, Mask::add2, Mask::add4, Mask::none}) {
    for (const auto scale : {Scale::divide, Scale::multiply}) {
      rules.push_back({"attention", written_out(scale, mask), fused(scale, mask)});
    }
  }
}

}  // namespace perigee::graph
