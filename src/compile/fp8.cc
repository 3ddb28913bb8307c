#include "compile/fp8.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "base/error.h"
#include "compile/passes.h"
#include "graph/ops.h"

namespace perigee::compile {
namespace {

using graph::Arg;
using graph::DType;
using graph::Graph;
using graph::Input;
using graph::Node;
using graph::NodeId;
using graph::Phase;
using graph::ValueId;
using plan::Fp8;

using Args = std::vector<std::pair<std::string, Arg>>;

bool is_view(const Node& node) {
  return graph::is_view(node.op) || node.op == "perigee::reshape" || node.op == "perigee::cast";
}

ValueId only_operand(const Node& node) {
  ValueId only;
  node.each_operand([&](ValueId v) { only = v; });
  return only;
}

// The names of a product's two factors; addmm has a bias before them.
std::pair<const char*, const char*> factors(std::string_view op) {
  if (op == "aten::addmm") return {"mat1", "mat2"};
  return {"self", "mat2"};
}

bool is_product(const Node& node) {
  return node.op == "aten::mm" || node.op == "aten::addmm" || node.op == "aten::bmm";
}

class Rounding {
 public:
  Rounding(const Graph& graph, const Fp8& fp8, bool updates)
      : graph_(graph), fp8_(fp8), updates_(updates), result_(graph) {
    result_.nodes.clear();
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      if (is_linear(graph.nodes[n])) linear_[static_cast<NodeId>(n)];
    }
  }

  Graph run() {
    std::vector<NodeId> moved(graph_.nodes.size(), -1);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      Node node = graph_.nodes[n];
      const auto id = static_cast<NodeId>(n);
      const auto of = node.phase == Phase::forward ? id : node.forward_node;
      if (node.forward_node >= 0) node.forward_node = moved[node.forward_node];
      const auto found = is_product(node) ? linear_.find(of) : linear_.end();
      if (found != linear_.end()) {
        node.phase == Phase::forward ? forward(found->second, node)
                                     : backward(found->second, of, node);
      }
      moved[n] = push(std::move(node));
    }
    return std::move(result_);
  }

 private:
  struct Layer {
    std::string name;                       // of its states
    std::map<std::string, ValueId> scales;  // of its input, weight and gradient
  };

  // A product of something with a parameter.
  bool is_linear(const Node& node) const {
    if (node.phase != Phase::forward || !is_product(node)) return false;
    const auto in = [&](const auto& scope) { return graph::contains_scope(scope, node.scope); };
    if (!fp8_.scopes.empty() && std::none_of(fp8_.scopes.begin(), fp8_.scopes.end(), in)) {
      return false;
    }
    if (!graph::is_floating(graph_.type(node.outputs[0]).dtype)) return false;
    const auto v = base(node.get<ValueId>(factors(node.op).second, {}));
    return v.defined() && std::any_of(graph_.inputs.begin(), graph_.inputs.end(), [&](auto& input) {
             return input.value == v && input.kind == Input::Kind::parameter;
           });
  }

  void forward(Layer& layer, Node& node) {
    layer.name = fmt::format("{}.{}", node.scope, count_[node.scope]++);
    const auto [first, second] = factors(node.op);
    for (auto& [name, arg] : node.args) {
      if (name != first && name != second) continue;
      auto& v = std::get<ValueId>(arg);
      v = rounded(layer, v, name == first ? "input" : "weight", node, dim_of(v, name == first));
    }
  }

  // `of`: the forward product.
  void backward(Layer& layer, NodeId of, Node& node) {
    const auto& product = graph_.nodes[of];
    const auto input = base(product.get<ValueId>(factors(product.op).first, {}));
    const auto weight = base(product.get<ValueId>(factors(product.op).second, {}));
    const auto [first, second] = factors(node.op);
    const auto what = [&](ValueId v) {
      return base(v) == weight ? "weight" : base(v) == input ? "input" : "gradient";
    };
    const auto a = node.get<ValueId>(first, {}), b = node.get<ValueId>(second, {});
    const bool of_weight = base(a) == input || base(b) == input;
    if (of_weight && !fp8_.wgrad) return;
    for (auto& [name, arg] : node.args) {
      if (name != first && name != second) continue;
      auto& v = std::get<ValueId>(arg);
      v = rounded(layer, v, what(v), node, dim_of(v, name == first));
    }
  }

  // The value of which this one is a view.
  ValueId base(ValueId v) const {
    while (v.defined() && graph_.values[v.index].producer >= 0) {
      const auto& maker = graph_.nodes[graph_.values[v.index].producer];
      if (!is_view(maker)) break;
      v = only_operand(maker);
    }
    return v;
  }

  // The dim of a factor that the product sums over.
  int64_t dim_of(ValueId v, bool first) const {
    return std::ssize(graph_.type(v).shape) - (first ? 1 : 2);
  }

  // Rounded again for the backward pass, so that nothing but what is kept anyway is kept till then.
  ValueId rounded(Layer& layer, ValueId v, const std::string& what, const Node& reader,
                  int64_t dim) {
    const bool wide = what == "gradient" && fp8_.format == Fp8::Format::hybrid;
    const std::string format = wide ? "e5m2" : "e4m3";
    const auto type = graph_.type(v);
    if (fp8_.recipe == Fp8::Recipe::blockwise) {
      return add("perigee::fp8_blocks",
                 {{"self", v},
                  {"format", format},
                  {"dim", dim},
                  {"block", fp8_.block},
                  {"margin", fp8_.margin}},
                 type, reader);
    }
    auto& scale = layer.scales[what];
    if (!scale.defined()) scale = scale_of(layer, v, what, format, reader);
    return add("perigee::fp8", {{"self", v}, {"scale", scale}, {"format", format}}, type, reader);
  }

  ValueId scale_of(const Layer& layer, ValueId v, const std::string& what,
                   const std::string& format, const Node& reader) {
    const graph::TensorType scalar{DType::float32, {}};
    const bool delayed = fp8_.recipe == Fp8::Recipe::delayed;
    const auto amax =
        updates_ || !delayed ? add("perigee::fp8_amax", {{"self", v}}, scalar, reader) : ValueId{};
    const auto scale = [&](ValueId amaxes) {
      return add("perigee::fp8_scale",
                 {{"amax", amaxes},
                  {"format", format},
                  {"margin", fp8_.margin},
                  {"most_recent", fp8_.amax_compute_algo == Fp8::Amax::most_recent}},
                 scalar, reader);
    };
    if (!delayed) return scale(amax);
    const auto name = fmt::format("{}{}.{}", kFp8History, layer.name, what);
    const graph::TensorType type{DType::float32, {fp8_.amax_history_len}};
    const auto history = result_.add_input(Input::Kind::buffer, name, type);
    if (updates_) {
      const auto next =
          add("perigee::fp8_history", {{"self", history}, {"amax", amax}}, type, reader);
      result_.outputs.push_back({graph::Output::Kind::buffer, name, next});
    }
    return scale(history);
  }

  ValueId add(const char* op, Args args, graph::TensorType type, const Node& reader) {
    const auto value = result_.add_value(std::move(type));
    push({.op = op,
          .args = std::move(args),
          .outputs = {value},
          .scope = reader.scope,
          .phase = reader.phase,
          .forward_node = reader.forward_node});
    return value;
  }

  NodeId push(Node node) { return append(result_, std::move(node)); }

  const Graph& graph_;
  const Fp8& fp8_;
  const bool updates_;  // histories
  Graph result_;
  std::map<NodeId, Layer> linear_;  // by the forward product
  std::map<std::string, int> count_;
};

}  // namespace

Graph round_to_fp8(const Graph& graph, const plan::Plan& plan, const StepSpec& spec) {
  if (!plan.fp8) return graph;
  if (plan.fp8->recipe == Fp8::Recipe::delayed && plan.pipeline.cuts()) {
    fail("compile",
         "fp8 with delayed scaling keeps a history that all ranks have, but a pipeline's stages "
         "have layers of their own (fp8_recipe = \"tensorwise\" or \"blockwise\")");
  }
  if (plan.fp8->recipe == Fp8::Recipe::delayed && plan.overlap.experts) {
    fail(
        "compile",
        "fp8 with delayed scaling keeps a history in the order of microbatches, but with overlap's "
        "experts one begins before the one in front of it ends: use fp8_recipe = \"tensorwise\" or "
        "\"blockwise\", or leave experts out");
  }
  return Rounding(graph, *plan.fp8, !spec.evaluation).run();
}

}  // namespace perigee::compile
