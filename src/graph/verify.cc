#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <unordered_set>

#include "base/fail.h"
#include "graph/graph.h"

namespace perigee::graph {
namespace {

// Sums over a rank's program, with its buffers and optimizer state, are then below 2^63.
constexpr int64_t kMostBytes = int64_t{1} << 60;

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph), made_(graph.values.size()) {}

  void verify() {
    int64_t total = 0;
    for (size_t i = 0; i < graph_.values.size(); ++i) {
      const auto& type = graph_.values[i].type;
      auto bytes = static_cast<int64_t>(size_of(type.dtype));
      for (auto size : type.shape) {
        if (size < 0) fail("graph", "sizes are at least 0, but %{} has a size of {}", i, size);
        if (__builtin_mul_overflow(bytes, std::max<int64_t>(1, size), &bytes)) {
          fail("graph", "a tensor has less than 2^63 bytes, but %{} has more", i);
        }
      }
      if (bytes > kMostBytes - total) {
        fail("graph",
             "the tensors of a step have up to 2^60 bytes together, but those up to %{} have more: "
             "make the model or its batch smaller",
             i);
      }
      total += bytes;
    }
    scopes();
    inputs();
    for (size_t i = 0; i < graph_.nodes.size(); ++i) node(static_cast<NodeId>(i));
    for (size_t i = 0; i < made_.size(); ++i) {
      if (!made_[i])
        fail("graph", "an input or a node makes every value, but nothing makes %{}", i);
    }
    outputs();
  }

 private:
  static std::string where(const Node& node, NodeId id) {
    return fmt::format("node {} ({} in scope \"{}\")", id, node.op, node.scope);
  }

  bool exists(ValueId v) const {
    return v.defined() && v.index < static_cast<int32_t>(graph_.values.size());
  }

  void scopes() {
    for (const auto& scope : graph_.scopes) {
      const auto& path = scope.path;
      if (!paths_.insert(path).second) {
        fail("graph", "scopes are listed once, but \"{}\" occurs twice", path);
      }
      if (path.empty()) continue;
      const auto dot = path.rfind('.');
      const auto parent = dot == std::string::npos ? "" : path.substr(0, dot);
      if (!paths_.contains(parent)) {
        fail("graph", "a scope follows its parent, but \"{}\" has none before it", path);
      }
    }
  }

  void inputs() {
    std::unordered_set<std::string> names;
    for (const auto& input : graph_.inputs) {
      const auto kind = name_of(input.kind);
      if (!exists(input.value)) {
        fail("graph", "inputs have values, but {} \"{}\" has value %{} of {}", kind, input.name,
             input.value.index, graph_.values.size());
      }
      if (input.name.empty() || !names.insert(input.name).second) {
        fail("graph", "inputs have distinct names, but {} %{} is called \"{}\"{}", kind,
             input.value.index, input.name, input.name.empty() ? "" : " as another one");
      }
      const auto& value = graph_.values[input.value.index];
      if (value.producer != -1 || made_[input.value.index]) {
        fail("graph", "a value has one producer, but {} \"{}\" shares %{}", kind, input.name,
             input.value.index);
      }
      made_[input.value.index] = true;
      const auto bytes = static_cast<int64_t>(input.data.size());
      const auto expected = input.kind == Input::Kind::constant ? value.type.bytes() : 0;
      if (bytes != expected) {
        fail("graph", "{} \"{}\" holds {} bytes, but got {}", kind, input.name, expected, bytes);
      }
    }
  }

  void node(NodeId id) {
    const auto& node = graph_.nodes[id];
    if (node.op.empty()) fail("graph", "nodes have ops, but {} has none", where(node, id));
    if (!paths_.contains(node.scope)) {
      fail("graph", "scopes are listed, but that of {} is not", where(node, id));
    }
    if (node.forward_node < -1 || node.forward_node >= id) {
      fail("graph", "a backward node follows its forward node, but {} names node {}",
           where(node, id), node.forward_node);
    }
    for (size_t i = 0; i < node.args.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (node.args[i].first == node.args[j].first) {
          fail("graph", "arguments are given once, but {} has {} twice", where(node, id),
               node.args[i].first);
        }
      }
    }
    for (const auto& [name, arg] : node.args) {
      if (auto* v = std::get_if<ValueId>(&arg)) operand(node, id, name, *v);
      if (auto* list = std::get_if<std::vector<ValueId>>(&arg)) {
        for (auto v : *list) operand(node, id, name, v);
      }
    }
    for (size_t r = 0; r < node.outputs.size(); ++r) result(node, id, r);
  }

  void operand(const Node& node, NodeId id, const std::string& name, ValueId v) const {
    if (v.index == -1) return;
    if (!exists(v)) {
      fail("graph", "operands are values of the graph, but {} of {} is %{} of {}", name,
           where(node, id), v.index, graph_.values.size());
    }
    if (!made_[v.index]) {
      fail("graph", "values are made before they are used, but {} of {} is %{}", name,
           where(node, id), v.index);
    }
  }

  void result(const Node& node, NodeId id, size_t r) {
    const ValueId v = node.outputs[r];
    if (v.index == -1) return;
    if (!exists(v)) {
      fail("graph", "results are values of the graph, but {} makes %{} of {}", where(node, id),
           v.index, graph_.values.size());
    }
    if (made_[v.index]) {
      fail("graph", "a value has one producer, but {} makes %{} a second time", where(node, id),
           v.index);
    }
    made_[v.index] = true;
    const auto& value = graph_.values[v.index];
    if (value.producer != id || value.result != static_cast<int32_t>(r)) {
      fail("graph", "a value names its producer, but %{} of {} names result {} of node {}", v.index,
           where(node, id), value.result, value.producer);
    }
  }

  void outputs() const {
    std::set<std::pair<Output::Kind, std::string>> names;
    int losses = 0;
    for (const auto& output : graph_.outputs) {
      const auto kind = name_of(output.kind);
      if (!exists(output.value)) {
        fail("graph", "outputs are values of the graph, but {} \"{}\" is %{} of {}", kind,
             output.name, output.value.index, graph_.values.size());
      }
      if (!names.insert({output.kind, output.name}).second) {
        fail("graph", "outputs are listed once, but {} \"{}\" occurs twice", kind, output.name);
      }
      const auto& type = graph_.type(output.value);
      if (output.kind == Output::Kind::loss) {
        if (++losses > 1)
          fail("graph", "a graph has one loss, but got another, \"{}\"", output.name);
        if (!type.shape.empty() || !is_floating(type.dtype)) {
          fail("graph", "the loss is a floating scalar, but got {}", text(type));
        }
      }
      if (output.kind == Output::Kind::gradient) belongs(output, Input::Kind::parameter);
      if (output.kind == Output::Kind::buffer) belongs(output, Input::Kind::buffer);
    }
  }

  // A gradient or new value has the shape of the input that it belongs to.
  void belongs(const Output& output, Input::Kind kind) const {
    const Input* input = graph_.find_input(output.name);
    if (!input || input->kind != kind) {
      fail("graph", "a {} output belongs to a {}, but there is none called \"{}\"",
           name_of(output.kind), name_of(kind), output.name);
    }
    const auto& expected = graph_.type(input->value);
    const auto& type = graph_.type(output.value);
    const bool same = kind == Input::Kind::buffer ? type == expected : type.shape == expected.shape;
    if (!same) {
      fail("graph", "the {} output of \"{}\" is {}, but got {}", name_of(output.kind), output.name,
           text(expected), text(type));
    }
  }

  static std::string text(const TensorType& type) {
    return fmt::format("{}[{}]", name_of(type.dtype), fmt::join(type.shape, ", "));
  }

  const Graph& graph_;
  std::vector<bool> made_;
  std::unordered_set<std::string> paths_;
};

}  // namespace

void verify(const Graph& graph) { Verifier(graph).verify(); }

}  // namespace perigee::graph
