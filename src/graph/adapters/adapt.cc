#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "base/fail.h"
#include "graph/adapters/adapters.h"
#include "graph/adapters/uses.h"
#include "graph/ops.h"

namespace perigee::graph {
namespace {

constexpr std::string_view kWeight = "weight";
constexpr std::string_view kEnds[] = {"lora_A.weight", "lora_B.weight"};

std::string beside(std::string_view weight, std::string_view end) {
  return std::string(weight.substr(0, weight.size() - kWeight.size())) + std::string(end);
}

bool is_named_weight(std::string_view name) { return name == kWeight || name.ends_with(".weight"); }

bool trains(const Graph& graph) {
  return std::ranges::any_of(
      graph.outputs, [](const Output& output) { return output.kind == Output::Kind::gradient; });
}

// Returns the key that follows those of the graph's random ops.
int64_t next_key(const Graph& graph) {
  int64_t next = 0;
  for (const auto& node : graph.nodes) {
    if (!is_random(node.op)) continue;
    const bool attention = is_product(node.op);  // its operand `key` is a tensor
    const auto* name = attention ? "random_key" : "key";
    next = std::max(next, node.get<int64_t>(name, -1) + 1);
  }
  return next;
}

class Editor {
 public:
  Editor(Graph graph, const Adapters& adapters)
      : graph_(std::move(graph)),
        adapters_(adapters),
        readers_(readers_of(graph_)),
        trains_(trains(graph_)),
        key_(next_key(graph_)) {}

  Graph run() {
    check_trained();
    std::vector<Output> gradients;
    for (const auto& name : adapters_.weights) {
      if (!trains_ && !graph_.find_input(name)) continue;
      add(name, gradients);
    }
    splice();
    add_inputs();
    freeze();
    graph_.outputs.insert(graph_.outputs.end(), gradients.begin(), gradients.end());
    return eliminate_dead_code(std::move(graph_));
  }

 private:
  // A new node.
  struct Added {
    Node node;
    NodeId after = -1;   // node of the captured graph that it follows
    int forward = -1;    // index in `added_` of its forward node
    bool keeps = false;  // its first operand is the value that it replaces
  };

  void check_trained() const {
    for (const auto& name : adapters_.trained) {
      const auto* input = graph_.find_input(name);
      const auto* gradient = graph_.find_output(Output::Kind::gradient, name);
      if (!trains_ || (input && gradient && gradient->value.defined())) continue;
      fail("adapters", "a parameter that is trained has a gradient, but {} {}", name,
           input ? "has none" : "is not a parameter of the model");
    }
  }

  ValueId node(std::string op, std::vector<std::pair<std::string, Arg>> args, TensorType type,
               NodeId after, int forward = -1) {
    const auto& at = graph_.nodes[after];
    const auto result = graph_.add_value(std::move(type));
    made_[result] = static_cast<int>(added_.size());
    added_.push_back(
        {{std::move(op), std::move(args), {result}, at.scope, at.phase}, after, forward});
    return result;
  }

  const std::vector<int64_t>& shape(ValueId v) const { return graph_.type(v).shape; }

  ValueId transposed(ValueId v, NodeId after, int forward = -1) {
    auto type = graph_.type(v);
    std::swap(type.shape[0], type.shape[1]);
    return node("aten::t", {{"self", v}}, std::move(type), after, forward);
  }

  ValueId product(ValueId a, ValueId b, NodeId after, int forward = -1) {
    TensorType type{graph_.type(a).dtype, {shape(a)[0], shape(b)[1]}};
    return node("aten::mm", {{"self", a}, {"mat2", b}}, std::move(type), after, forward);
  }

  ValueId scaled(ValueId v, NodeId after, int forward = -1) {
    return node("aten::mul.Scalar", {{"self", v}, {"other", adapters_.scale()}}, graph_.type(v),
                after, forward);
  }

  ValueId dropped(ValueId v, int64_t key, NodeId after, int forward = -1) {
    if (!trains_ || adapters_.dropout == 0) return v;
    return node("perigee::dropout", {{"self", v}, {"p", adapters_.dropout}, {"key", key}},
                graph_.type(v), after, forward);
  }

  // Adds `term` to the value that the node `to` computes.
  void increase(NodeId to, ValueId term, int forward = -1) {
    const auto before = graph_.nodes[to].outputs[0];
    replaced_[before] = node("aten::add.Tensor", {{"self", before}, {"other", term}},
                             graph_.type(before), to, forward);
    added_.back().keeps = true;
  }

  ValueId sum(ValueId a, ValueId b, NodeId after, int forward) {
    if (!a.defined()) return b;
    return node("aten::add.Tensor", {{"self", a}, {"other", b}}, graph_.type(a), after, forward);
  }

  void add(const std::string& name, std::vector<Output>& gradients) {
    if (is_named_weight(name) && graph_.find_input(adapter_a(name))) {
      fail("adapters", "a weight has one adapter, but {} has {} already", name, adapter_a(name));
    }
    const auto reason = refusal(graph_, name);
    if (!reason.empty()) fail("adapters", "{} {}: match other modules", name, reason);
    auto uses = uses_of(graph_, readers_, name);
    const auto weight = *graph_.find_input(name);
    const auto type = graph_.type(weight.value);
    const auto a = graph_.add_value({type.dtype, {adapters_.rank, type.shape[1]}});
    const auto b = graph_.add_value({type.dtype, {type.shape[0], adapters_.rank}});
    inputs_[name] = {a, b};
    ValueId of_a, of_b;
    // In the order of the backward pass, so that sums follow their terms.
    std::ranges::sort(uses.products, {}, &Product::first_derivative);
    for (const auto& use : uses.products) beside_product(use, a, b, of_a, of_b);
    if (!trains_) return;
    gradients.push_back({Output::Kind::gradient, adapter_a(name), of_a});
    gradients.push_back({Output::Kind::gradient, adapter_b(name), of_b});
  }

  // Adds the ops beside one product, and their gradients to those of A and B.
  void beside_product(const Product& use, ValueId a, ValueId b, ValueId& of_a, ValueId& of_b) {
    const auto forward = use.forward;
    const auto key = key_++;
    const auto x = dropped(use.x, key, forward);
    const int drop = static_cast<int>(added_.size()) - 1;
    const auto to_a = transposed(a, forward);
    const auto low = product(x, to_a, forward);
    const int down = made_.at(low);
    const auto hidden = scaled(low, forward);
    const auto to_b = transposed(b, forward);
    const auto out = product(hidden, to_b, forward);
    const int up = made_.at(out);
    increase(forward, out);
    if (use.d_weight < 0) return;

    const auto first = use.first_derivative();
    auto dy = use.dy.value, dy_t = use.dy.value;
    (use.dy.transposed ? dy : dy_t) = transposed(use.dy.value, first, up);
    of_b = sum(of_b, product(dy_t, hidden, first, up), first, up);
    const auto d_low = scaled(product(dy, b, first, up), first, down);
    of_a = sum(of_a, product(transposed(d_low, first, down), x, first, down), first, down);
    if (use.d_input < 0) return;
    auto d_x = dropped(product(d_low, a, use.d_input, down), key, use.d_input, drop);
    if (use.d_input_transposed) d_x = transposed(d_x, use.d_input, down);
    increase(use.d_input, d_x, up);
  }

  // Inserts the new nodes after the nodes that they follow.
  void splice() {
    std::vector<std::vector<int>> after(graph_.nodes.size());
    for (size_t k = 0; k < added_.size(); ++k)
      after[added_[k].after].push_back(static_cast<int>(k));
    const auto resolve = [&](ValueId& v) {
      if (const auto found = replaced_.find(v); found != replaced_.end()) v = found->second;
    };
    std::vector<NodeId> old_place(graph_.nodes.size()), new_place(added_.size());
    std::vector<Node> nodes;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      auto& node = graph_.nodes[n];
      old_place[n] = static_cast<NodeId>(nodes.size());
      node.each_operand(resolve);
      if (node.forward_node >= 0) node.forward_node = old_place[node.forward_node];
      nodes.push_back(std::move(node));
      for (const int k : after[n]) {
        auto& [added, at, forward, keeps] = added_[k];
        const auto before = keeps ? std::get<ValueId>(added.args[0].second) : ValueId{};
        added.each_operand([&](ValueId& v) {
          if (v != before) resolve(v);
        });
        if (forward >= 0) added.forward_node = new_place[forward];
        new_place[k] = static_cast<NodeId>(nodes.size());
        nodes.push_back(std::move(added));
      }
    }
    graph_.nodes = std::move(nodes);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const auto& outputs = graph_.nodes[n].outputs;
      for (size_t r = 0; r < outputs.size(); ++r) {
        if (!outputs[r].defined()) continue;
        graph_.values[outputs[r].index].producer = static_cast<NodeId>(n);
        graph_.values[outputs[r].index].result = static_cast<int32_t>(r);
      }
    }
    for (auto& output : graph_.outputs) resolve(output.value);
  }

  // Inserts the new parameters after their weights.
  void add_inputs() {
    std::vector<Input> inputs;
    for (auto& input : graph_.inputs) {
      const auto found = inputs_.find(input.name);
      const auto name = input.name;
      inputs.push_back(std::move(input));
      if (found == inputs_.end()) continue;
      const auto [a, b] = found->second;
      inputs.push_back({.kind = Input::Kind::parameter, .name = adapter_a(name), .value = a});
      inputs.push_back({.kind = Input::Kind::parameter, .name = adapter_b(name), .value = b});
    }
    graph_.inputs = std::move(inputs);
  }

  void freeze() {
    const auto& trained = adapters_.trained;
    const auto stays = [&](const std::string& name) {
      return std::ranges::find(trained, name) != trained.end();
    };
    std::set<std::string> added;
    for (const auto& [weight, values] : inputs_) {
      added.insert(adapter_a(weight));
      added.insert(adapter_b(weight));
    }
    for (auto& input : graph_.inputs) {
      if (input.kind != Input::Kind::parameter || added.contains(input.name)) continue;
      input.trainable = input.trainable && stays(input.name);
    }
    std::erase_if(graph_.outputs, [&](const Output& output) {
      return output.kind == Output::Kind::gradient && !stays(output.name);
    });
  }

  Graph graph_;
  const Adapters& adapters_;
  const Readers readers_;
  const bool trains_;
  int64_t key_;
  std::vector<Added> added_;
  std::map<ValueId, int> made_;                                // by result: index in `added_`
  std::map<ValueId, ValueId> replaced_;                        // by the value without the adapter
  std::map<std::string, std::pair<ValueId, ValueId>> inputs_;  // A and B by weight
};

}  // namespace

double Adapters::scale() const {
  return alpha / (rslora ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
}

std::string adapter_a(std::string_view weight) { return beside(weight, kEnds[0]); }
std::string adapter_b(std::string_view weight) { return beside(weight, kEnds[1]); }

bool is_adapter(const Graph& graph, std::string_view name) {
  for (const auto end : kEnds) {
    if (!name.ends_with(end)) continue;
    const auto of = std::string(name.substr(0, name.size() - end.size())) + std::string(kWeight);
    const auto* weight = graph.find_input(of);
    if (weight && !weight->trainable) return true;
  }
  return false;
}

bool has_adapters(const Graph& graph, const Adapters& adapters) {
  const bool with_gradients = trains(graph);
  return std::ranges::all_of(adapters.weights, [&](const std::string& name) {
    const auto* weight = graph.find_input(name);
    if (!weight && !with_gradients) return true;
    const auto* a = graph.find_input(adapter_a(name));
    const auto* b = graph.find_input(adapter_b(name));
    if (!weight || !a || !b || weight->trainable) return false;
    const auto& shape = graph.type(weight->value).shape;
    return shape.size() == 2 &&
           graph.type(a->value).shape == std::vector{adapters.rank, shape[1]} &&
           graph.type(b->value).shape == std::vector{shape[0], adapters.rank};
  });
}

std::string refusal(const Graph& graph, std::string_view weight) {
  const auto* input = graph.find_input(weight);
  const bool named = is_named_weight(weight);
  if (named && input && graph.find_input(adapter_a(weight))) {
    return is_adapter(graph, adapter_a(weight))
               ? ""
               : fmt::format("belongs to a module that has a parameter {} of its own",
                             adapter_a(weight));
  }
  const auto uses = uses_of(graph, readers_of(graph), weight);
  if (!uses.refused.empty() || named) return uses.refused;
  return "is no parameter `weight` of a module";
}

Graph adapt(Graph graph, const Adapters& adapters) {
  if (has_adapters(graph, adapters)) return graph;
  return Editor(std::move(graph), adapters).run();
}

}  // namespace perigee::graph
