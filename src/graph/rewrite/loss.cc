// Cross entropy per label, and SwiGLU (Shazeer 2020), written out.
#include "graph/rewrite/sketch.h"

namespace perigee::graph {
namespace {

// The ops that compute the label's log probability, and the one that removes its dim of size 1.
enum class Form { squeezed_then_negated, negated_then_squeezed, logsumexp };

// Scores [n, c], or [b, s, c] with labels [b, s]. The pattern does not include the ops that produce
// the labels or add a last dim of size 1.
struct Scores {
  Shape whole, labels, column;
  int64_t dim;
};
const Scores kScores[] = {{{1013, 1021}, {1013}, {1013, 1}, 1},
                          {{1013, 1019, 1021}, {1013, 1019}, {1013, 1019, 1}, 2}};

Graph cross_entropy(Form form, const Scores& of) {
  Sketch s;
  const auto x = s.parameter("x", of.whole), index = s.data("index", of.column, DType::int64),
             g = s.data("gradient:y", of.labels);
  const auto column = [&](ValueId v) { return s.op("perigee::reshape", {{"self", v}}, of.labels); };
  const bool direct = form == Form::logsumexp;
  const auto logs = direct
                        ? x
                        : s.op("aten::_log_softmax",
                               {{"self", x}, {"dim", of.dim}, {"half_to_float", false}}, of.whole);
  const auto picked = s.op("aten::gather", {{"self", logs}, {"dim", of.dim}, {"index", index}},
                           of.column);
  ValueId squeezed, negated, total, y;
  switch (form) {
    case Form::squeezed_then_negated:
      squeezed = column(picked);
      y = negated = s.op("aten::neg", {{"self", squeezed}}, of.labels);
      break;
    case Form::negated_then_squeezed:
      negated = s.op("aten::neg", {{"self", picked}}, of.column);
      y = squeezed = column(negated);
      break;
    case Form::logsumexp:
      squeezed = column(picked);
      total = s.op("aten::logsumexp", {{"self", x}, {"dim", Shape{of.dim}}}, of.labels);
      y = s.op("aten::sub.Tensor", Sketch::both(total, squeezed), of.labels);
      break;
  }
  s.result(y);

  const auto widen = [&](ValueId from, ValueId v) {
    return s.back(from, "perigee::reshape", {{"self", v}}, of.column);
  };
  auto to_picked = g;
  if (form == Form::negated_then_squeezed) {
    to_picked = s.back(negated, "aten::neg", {{"self", widen(squeezed, g)}}, of.column);
  } else {
    const auto minus = s.back(direct ? y : negated, "aten::neg", {{"self", g}}, of.labels);
    to_picked = widen(squeezed, minus);
  }
  const auto zeros = s.back(picked, "perigee::full", {{"value", 0.0}}, of.whole);
  const auto scattered = s.back(
      picked, "aten::scatter_add",
      {{"self", zeros}, {"dim", of.dim}, {"index", index}, {"src", to_picked}}, of.whole);
  if (!direct) {
    s.gradient("x", s.back(logs, "aten::_log_softmax_backward_data",
                           {{"grad_output", scattered},
                            {"output", logs},
                            {"dim", of.dim},
                            {"input_dtype", DType::float32}},
                           of.whole));
    return std::move(s.graph);
  }
  const auto wide = widen(total, g), sums = widen(total, total);
  const auto shifted = s.back(total, "aten::sub.Tensor", Sketch::both(x, sums), of.whole);
  const auto probabilities = s.back(total, "aten::exp", {{"self", shifted}}, of.whole);
  const auto spread = s.back(total, "aten::mul.Tensor", Sketch::both(wide, probabilities),
                             of.whole);
  s.gradient("x", s.back(picked, "aten::add.Tensor", Sketch::both(spread, scattered), of.whole));
  return std::move(s.graph);
}

Graph fused_cross_entropy(const Scores& of) {
  Sketch s;
  auto x = s.parameter("x", of.whole), g = s.data("gradient:y", of.labels);
  const auto index = s.data("index", of.column, DType::int64);
  const bool flat = of.whole.size() == 2;
  const Shape rows = {flat ? 1013 : 1013 * 1019}, scores = {rows[0], 1021};
  const auto labels = s.op("perigee::reshape", {{"self", index}}, rows, DType::int64);
  if (!flat) x = s.op("perigee::reshape", {{"self", x}}, scores);
  const auto made = s.graph.add_node("perigee::cross_entropy", {{"logits", x}, {"target", labels}},
                                     {{DType::float32, rows}, {DType::float64, rows}});
  s.result(flat ? made[0] : s.op("perigee::reshape", {{"self", made[0]}}, of.labels));
  if (!flat) g = s.back(made[0], "perigee::reshape", {{"self", g}}, rows);
  const auto back = s.back(made[0], "perigee::cross_entropy_backward",
                           {{"grad", g}, {"logits", x}, {"target", labels}, {"logsumexp", made[1]}},
                           scores);
  s.gradient("x", flat ? back : s.back(made[0], "perigee::reshape", {{"self", back}}, of.whole));
  return std::move(s.graph);
}

const Shape kGate = {1009, 1013};

Graph swiglu(bool silu) {
  Sketch s;
  const auto gate = s.parameter("gate", kGate), up = s.parameter("up", kGate),
             g = s.data("gradient:y", kGate);
  const auto mul_back = [&](ValueId of, ValueId a, ValueId b) {
    return s.back(of, "aten::mul.Tensor", Sketch::both(a, b), kGate);
  };
  const auto share = silu ? ValueId{} : s.op("aten::sigmoid", {{"self", gate}}, kGate);
  const auto activated = silu ? s.op("aten::silu", {{"self", gate}}, kGate)
                              : s.op("aten::mul.Tensor", Sketch::both(gate, share), kGate);
  const auto y = s.op("aten::mul.Tensor", Sketch::both(activated, up), kGate);
  s.result(y);
  s.gradient("up", mul_back(y, g, activated));
  const auto in = mul_back(y, g, up);
  if (silu) {
    const auto part = s.back(activated, "aten::sigmoid", {{"self", gate}}, kGate);
    const auto ones = s.back(activated, "perigee::full", {{"value", 1.0}}, kGate);
    const auto rest = s.back(activated, "aten::sub.Tensor", Sketch::both(ones, part), kGate);
    const auto times = mul_back(activated, gate, rest);
    const auto more = s.back(activated, "aten::add.Scalar", Sketch::with(times, int64_t{1}), kGate);
    s.gradient("gate", mul_back(activated, in, mul_back(activated, part, more)));
  } else {
    const auto to_share = mul_back(activated, in, gate), to_gate = mul_back(activated, in, share);
    const auto through = s.back(share, "aten::sigmoid_backward",
                                {{"grad_output", to_share}, {"output", share}}, kGate);
    s.gradient("gate", s.back(share, "aten::add.Tensor", Sketch::both(to_gate, through), kGate));
  }
  return std::move(s.graph);
}

Graph fused_swiglu() {
  Sketch s;
  const auto gate = s.parameter("gate", kGate), up = s.parameter("up", kGate),
             g = s.data("gradient:y", kGate);
  const TensorType type{DType::float32, kGate};
  const auto y = s.op("perigee::swiglu", {{"gate", gate}, {"up", up}}, kGate);
  s.result(y);
  const auto back = s.several(y, "perigee::swiglu_backward",
                              {{"grad", g}, {"gate", gate}, {"up", up}}, {type, type});
  s.gradient("gate", back[0]);
  s.gradient("up", back[1]);
  return std::move(s.graph);
}

}  // namespace

void add_loss_fusions(std::vector<RewriteRule>& rules) {
  for (const auto form :
       {Form::squeezed_then_negated, Form::negated_then_squeezed, Form::logsumexp}) {
    for (const auto& scores : kScores) {
      rules.push_back({"cross_entropy", cross_entropy(form, scores), fused_cross_entropy(scores)});
    }
  }
}

void add_swiglu_fusions(std::vector<RewriteRule>& rules) {
  for (const bool silu : {true, false}) rules.push_back({"swiglu", swiglu(silu), fused_swiglu()});
}

}  // namespace perigee::graph
