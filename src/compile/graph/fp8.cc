#include "compile/graph/fp8.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "base/fail.h"
#include "compile/graph/autocast.h"
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

// Returns the argument names of a product's two factors; addmm has a bias before them.
std::pair<const char*, const char*> factors(std::string_view op) {
  if (op == "aten::addmm") return {"mat1", "mat2"};
  return {"self", "mat2"};
}

bool is_product(const Node& node) {
  return node.op == "aten::mm" || node.op == "aten::addmm" || node.op == "aten::bmm";
}

// Returns the shape of a scale: [] where all ranks share it, else one element per rank.
std::vector<int64_t> own_shape(const plan::Plan& plan) {
  if (plan.fp8->reduce_amax) return {};
  const auto copies = plan.copy_axes;
  std::vector<int64_t> shape;
  for (const auto& axis : plan.mesh.axes) {
    const bool shared = axis.name == plan.pipeline.axis ||
                        std::find(copies.begin(), copies.end(), axis.name) != copies.end();
    shape.push_back(shared ? 1 : axis.size);
  }
  const bool several = std::any_of(shape.begin(), shape.end(), [](int64_t n) { return n > 1; });
  return several ? shape : std::vector<int64_t>();
}

class Fp8Rounding {
 public:
  Fp8Rounding(const Graph& graph, const plan::Plan& plan, bool updates)
      : graph_(graph), fp8_(*plan.fp8), own_(own_shape(plan)), updates_(updates), result_(graph) {
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
    std::string name;                          // of its states
    std::map<std::string, ValueId> scales;     // of its input, weight and gradient
    std::map<std::string, ValueId> inverses;   // of the scales
    std::map<std::string, ValueId> histories;  // whose next states are not yet made
  };

  // Returns whether the node is a product with a parameter.
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
    multiply(layer, node, "input", "weight");
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
    multiply(layer, node, what(a), what(b));
  }

  // Replaces the product's factors by rounded ones. `a`, `b`: their purposes ("input",
  // "weight", "gradient").
  void multiply(Layer& layer, Node& node, const std::string& a, const std::string& b) {
    if (is_native(node, b)) return multiply_natively(layer, node, a, b);
    const auto [first, second] = factors(node.op);
    for (auto& [name, arg] : node.args) {
      if (name != first && name != second) continue;
      auto& v = std::get<ValueId>(arg);
      v = rounded(layer, v, name == first ? a : b, node, dim_of(v, name == first));
    }
  }

  // Returns whether the device can multiply eight-bit factors of these sizes (shard/ checks the
  // local sizes). `b`: the second factor's purpose.
  bool is_native(const Node& node, const std::string& b) const {
    if (fp8_.product != Fp8::Product::native || node.op == "aten::bmm") return false;
    if (node.op == "aten::addmm" && node.args.size() != 3) return false;  // scaled
    const auto& made = graph_.type(node.outputs[0]);
    if (made.dtype == DType::float64 || made.numel() == 0) return false;
    // LibTorch's products with scales of rows that all such devices have.
    if (has_rows() && (made.dtype != DType::bfloat16 || format_of(b) != "e4m3")) return false;
    const auto [first, second] = factors(node.op);
    const auto fits = [&](const char* factor) {
      const auto columns = graph_.type(node.get<ValueId>(factor, {})).shape[1];
      return columns > 0 && columns % graph::kEightBitMultiple == 0;
    };
    return fits(first) && fits(second);
  }

  // Devices read the second factor column by column. The bias of an addmm is added after
  // the product.
  void multiply_natively(Layer& layer, Node& node, const std::string& a, const std::string& b) {
    const auto [first, second] = factors(node.op);
    const auto turned = [&](ValueId v) {
      auto type = result_.type(v);
      std::swap(type.shape[0], type.shape[1]);
      return add("aten::t", {{"self", v}}, std::move(type), node);
    };
    const auto mat1 = cast(layer, node.get<ValueId>(first, {}), a, node);
    const auto mat2 = cast(layer, turned(node.get<ValueId>(second, {})), b, node);
    const auto type = graph_.type(node.outputs[0]);
    Args args = {{"self", mat1.values},
                 {"mat2", turned(mat2.values)},
                 {"scale_a", mat1.inverse},
                 {"scale_b", has_rows() ? turned(mat2.inverse) : mat2.inverse},
                 {"out_dtype", type.dtype}};
    const auto bias = node.op == "aten::addmm" ? node.get<ValueId>("self", {}) : ValueId{};
    if (bias.defined()) {
      const auto product = add("aten::_scaled_mm", std::move(args), type, node);
      node.op = "aten::add.Tensor";
      node.args = {{"self", product}, {"other", bias}};
    } else {
      node.op = "aten::_scaled_mm";
      node.args = std::move(args);
    }
  }

  // A factor as eight-bit floats, and what they are multiplied by: a number, or one for each row.
  struct EightBits {
    ValueId values, inverse;
  };

  EightBits cast(Layer& layer, ValueId v, const std::string& what, const Node& reader) {
    const auto format = format_of(what);
    const auto dtype = format == "e5m2" ? DType::float8_e5m2 : DType::float8_e4m3;
    if (has_rows()) {
      const auto amax = amax_along(v, std::ssize(result_.type(v).shape) - 1, reader);
      const EightBits made = {result_.add_value({dtype, result_.type(v).shape}),
                              result_.add_value(result_.type(amax))};
      push({.op = "perigee::fp8_cast_rows",
            .args = {{"self", v}, {"amax", amax}, {"format", format}, {"margin", fp8_.margin}},
            .outputs = {made.values, made.inverse},
            .scope = reader.scope,
            .phase = reader.phase,
            .forward_node = reader.forward_node});
      return made;
    }
    const auto scale = scale_of(layer, v, what, reader);
    auto& inverse = layer.inverses[what];
    if (!inverse.defined()) {
      inverse = add("aten::reciprocal", {{"self", scale}}, {DType::float32, {}}, reader);
    }
    const auto narrow = add("perigee::fp8_cast",
                            {{"self", v}, {"scale", scale}, {"format", format}},
                            {dtype, result_.type(v).shape}, reader);
    record_magnitude(layer, v, what, reader);
    return {narrow, inverse};
  }

  bool has_rows() const { return fp8_.recipe == Fp8::Recipe::rowwise; }

  // Returns the largest magnitudes of a factor along a dim.
  ValueId amax_along(ValueId v, int64_t dim, const Node& reader) {
    graph::TensorType type{DType::float32, result_.type(v).shape};
    type.shape[static_cast<size_t>(dim)] = 1;
    return add("perigee::fp8_amax_rows", {{"self", v}, {"dim", dim}}, std::move(type), reader);
  }

  // Returns the base of a view.
  ValueId base(ValueId v) const {
    while (v.defined() && graph_.values[v.index].producer >= 0) {
      const auto& maker = graph_.nodes[graph_.values[v.index].producer];
      if (!is_view(maker)) break;
      v = maker.only_operand();
    }
    return v;
  }

  // Returns the dim of a factor that the product sums over.
  int64_t dim_of(ValueId v, bool first) const {
    return std::ssize(graph_.type(v).shape) - (first ? 1 : 2);
  }

  // Rounded a second time for the backward pass, so that no additional value is kept until then.
  ValueId rounded(Layer& layer, ValueId v, const std::string& what, const Node& reader,
                  int64_t dim) {
    const auto format = format_of(what);
    const auto type = graph_.type(v);
    if (has_rows()) {
      return add("perigee::fp8_rows",
                 {{"self", v},
                  {"amax", amax_along(v, dim, reader)},
                  {"format", format},
                  {"margin", fp8_.margin}},
                 type, reader);
    }
    if (fp8_.recipe == Fp8::Recipe::blockwise) {
      return add("perigee::fp8_blocks",
                 {{"self", v},
                  {"format", format},
                  {"dim", dim},
                  {"block", fp8_.block},
                  {"margin", fp8_.margin}},
                 type, reader);
    }
    const auto scale = scale_of(layer, v, what, reader);
    const auto result = add("perigee::fp8", {{"self", v}, {"scale", scale}, {"format", format}},
                            type, reader);
    record_magnitude(layer, v, what, reader);
    return result;
  }

  std::string format_of(const std::string& what) const {
    return what == "gradient" && fp8_.format == Fp8::Format::hybrid ? "e5m2" : "e4m3";
  }

  ValueId scale_of(Layer& layer, ValueId v, const std::string& what, const Node& reader) {
    auto& scale = layer.scales[what];
    if (!scale.defined()) scale = make_scale(layer, v, what, reader);
    return scale;
  }

  ValueId make_scale(Layer& layer, ValueId v, const std::string& what, const Node& reader) {
    const auto format = format_of(what);
    const graph::TensorType number{DType::float32, own_};
    const auto scale = [&](ValueId amaxes) {
      return add("perigee::fp8_scale",
                 {{"amax", amaxes},
                  {"format", format},
                  {"margin", fp8_.margin},
                  {"most_recent", fp8_.amax_compute_algo == Fp8::Amax::most_recent}},
                 number, reader);
    };
    if (fp8_.recipe != Fp8::Recipe::delayed) {
      return scale(add("perigee::fp8_amax", {{"self", v}}, number, reader));
    }
    const auto name = history_of(layer, what);
    const auto history = result_.add_input(Input::Kind::buffer, name,
                                           with_last(fp8_.amax_history_len));
    if (updates_) layer.histories[what] = history;
    const auto fresh = scale(history);
    return fp8_.interval == 1 ? fresh : held(name + ".held", fresh, reader);
  }

  static std::string history_of(const Layer& layer, const std::string& what) {
    return fmt::format("{}{}.{}", kFp8History, layer.name, what);
  }

  // Puts the largest magnitude of a factor that was just rounded into its history, once.
  void record_magnitude(Layer& layer, ValueId v, const std::string& what, const Node& reader) {
    const auto found = layer.histories.extract(what);
    if (found.empty()) return;
    const auto amax = add("perigee::fp8_amax", {{"self", v}}, {DType::float32, own_}, reader);
    const auto next = add("perigee::fp8_history", {{"self", found.mapped()}, {"amax", amax}},
                          with_last(fp8_.amax_history_len), reader);
    result_.outputs.push_back({graph::Output::Kind::buffer, history_of(layer, what), next});
  }

  // Returns the scale that is kept for `interval` microbatches.
  ValueId held(const std::string& name, ValueId fresh, const Node& reader) {
    const auto state = result_.add_input(Input::Kind::buffer, name, with_last(2));
    const auto used = result_.add_value({DType::float32, own_});
    const auto next = updates_ ? result_.add_value(with_last(2)) : ValueId{};
    push({.op = "perigee::fp8_held",
          .args = {{"self", state}, {"scale", fresh}, {"interval", fp8_.interval}},
          .outputs = {used, next},
          .scope = reader.scope,
          .phase = reader.phase,
          .forward_node = reader.forward_node});
    if (updates_) result_.outputs.push_back({graph::Output::Kind::buffer, name, next});
    return used;
  }

  graph::TensorType with_last(int64_t size) const {
    graph::TensorType type{DType::float32, own_};
    type.shape.push_back(size);
    return type;
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
  const std::vector<int64_t> own_;
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
         "have layers of their own (fp8_recipe = \"tensorwise\", \"rowwise\" or \"blockwise\")");
  }
  if (plan.fp8->recipe == Fp8::Recipe::delayed && plan.overlap.weights) {
    fail("compile",
         "fp8 with delayed scaling keeps a history in the order of a microbatch's passes, but "
         "overlap's weights defers some of them: use fp8_recipe = \"tensorwise\", \"rowwise\" or "
         "\"blockwise\", or leave weights out");
  }
  if (plan.fp8->recipe == Fp8::Recipe::delayed && plan.overlap.experts) {
    fail(
        "compile",
        "fp8 with delayed scaling keeps a history in the order of microbatches, but with overlap's "
        "experts one begins before the previous one ends: use fp8_recipe = \"tensorwise\", "
        "\"rowwise\" or \"blockwise\", or leave experts out");
  }
  return Fp8Rounding(graph, plan, !spec.evaluation).run();
}

mesh::Placements place_fp8_states(const plan::Plan& plan) {
  mesh::Placements placements(plan.mesh.axes.size());
  if (!plan.fp8) return placements;
  const auto own = own_shape(plan);
  for (size_t a = 0; a < own.size(); ++a) {
    if (own[a] > 1) placements[a] = mesh::Placement::shard(static_cast<int>(a));
  }
  return placements;
}

plan::Plan with_fp8_states(plan::Plan plan, const graph::Graph& rounded) {
  const auto placements = place_fp8_states(plan);
  if (placements == mesh::Placements(placements.size())) return plan;
  for (const auto& input : rounded.inputs) {
    if (input.name.starts_with(kFp8History)) plan.placements[input.name] = placements;
  }
  return plan;
}

}  // namespace perigee::compile
