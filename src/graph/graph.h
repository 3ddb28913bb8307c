// The graph: one training step of one global microbatch (forward, backward, parameter gradients,
// new buffer values) in SSA form over ATen ops. Torch-free: capture/ makes it, shard/ and compile/
// rewrite it, and the same structure holds a rank's local graph, where collectives are ordinary
// nodes (`comm::all_reduce`).
//
// Every op is functional: no node writes to its operands. An op has the name that LibTorch's
// dispatcher gives it ("aten::add.Tensor"); ops of our own are "perigee::..." (graph/ops.h lists
// them with their meaning).
//
// Sizes are types, not attributes: an op whose attributes would only repeat its result's shape
// (`perigee::reshape`, `perigee::expand`, `perigee::full`, ...) has none; the value's type has the
// shape, and making a graph local changes only types.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "graph/dtype.h"

namespace perigee::graph {

// Type of a tensor value. Shape in elements; a scalar has none.
struct TensorType {
  DType dtype = DType::float32;
  std::vector<int64_t> shape;

  int64_t numel() const;
  int64_t bytes() const { return numel() * static_cast<int64_t>(size_of(dtype)); }
  bool operator==(const TensorType&) const = default;
};

// Index of a value in Graph::values; -1 is "no tensor" (an optional operand that is absent).
struct ValueId {
  int32_t index = -1;
  bool defined() const { return index >= 0; }
  auto operator<=>(const ValueId&) const = default;
};

using NodeId = int32_t;

// An argument of a node; std::monostate is None. A memory format or a reduction is an int64_t, the
// number of LibTorch's enum.
using Arg =
    std::variant<std::monostate, ValueId, std::vector<ValueId>, bool, int64_t, double, std::string,
                 DType, std::vector<int64_t>, std::vector<double>, std::vector<bool>>;

enum class Phase : uint8_t { forward, backward };

// One op. Arguments carry the names of the op's schema, in its order; those equal to the schema's
// default are left out, and so are device, layout and pin_memory.
struct Node {
  std::string op;
  std::vector<std::pair<std::string, Arg>> args;
  // An output that no op can read (its schema's result is undefined) has index -1.
  std::vector<ValueId> outputs;
  std::string scope;  // dotted module path, "" at the top
  Phase phase = Phase::forward;
  NodeId forward_node = -1;  // of a backward node: the forward node that it differentiates, or -1

  // Returns the argument, or nullptr where it is left out.
  const Arg* find(std::string_view arg) const;
  // Returns the argument as T, or `otherwise` where it is left out or None. An int64_t
  // or bool is accepted as a double. Throws Error when it has another type. T is one of Arg's.
  template <class T>
  T get(std::string_view arg, T otherwise) const;
  // Calls f(ValueId&) or f(const ValueId&) for each defined operand, in order.
  template <class F>
  void each_operand(F f);
  template <class F>
  void each_operand(F f) const;
  // Returns the operand of a node that has one.
  ValueId only_operand() const;
  bool operator==(const Node&) const = default;
};

struct Value {
  TensorType type;
  NodeId producer = -1;  // -1: a graph input
  int32_t result = 0;    // which of the producer's outputs
  bool operator==(const Value&) const = default;
};

// A tensor that exists before the step.
struct Input {
  enum class Kind : uint8_t { parameter, buffer, data, constant };
  Kind kind = Kind::data;
  // Parameter and buffer: the module's dotted name. Data: the batch's tensor ("tokens").
  std::string name;
  ValueId value;
  bool trainable = true;  // parameters: false when requires_grad is off
  bool batched = true;    // data: dim 0 is the samples; false: it is the same for all of them
  std::string data;       // constant: its bytes, row-major
  bool operator==(const Input&) const = default;
};

// A value that the step returns.
struct Output {
  // gradient: of the parameter `name`, shaped like it; loss: scalar; buffer: the new value of the
  // buffer `name`; result: a tensor that evaluation or an embedder asks for, by name ("logits").
  enum class Kind : uint8_t { loss, gradient, buffer, result };
  Kind kind = Kind::result;
  std::string name;
  ValueId value;
  bool operator==(const Output&) const = default;
};

// A module of the model: its path and its type name, for strategies and for matching by knowledge
// of a model.
struct Scope {
  std::string path;
  std::string type;  // Module::name() without "torch::nn::" and "Impl"
  bool operator==(const Scope&) const = default;
};

// Returns whether `scope` is `outer` or below it. "" holds every scope.
bool contains_scope(std::string_view outer, std::string_view scope);

struct Graph {
  std::vector<Value> values;
  std::vector<Node> nodes;  // in an order that respects data flow
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<Scope> scopes;  // every module, parents first

  // Appends a value that no node makes yet. Returns its id.
  ValueId add_value(TensorType type);
  // Appends an input and its value.
  ValueId add_input(Input::Kind kind, std::string name, TensorType type);
  // Appends a node and one value for each type. Returns its outputs.
  std::vector<ValueId> add_node(std::string op, std::vector<std::pair<std::string, Arg>> args,
                                std::vector<TensorType> types, std::string scope = "",
                                Phase phase = Phase::forward);

  const TensorType& type(ValueId v) const { return values[v.index].type; }
  const Input* find_input(std::string_view name) const;
  const Output* find_output(Output::Kind kind, std::string_view name) const;
  // Returns whether the input is the same in all microbatches: a constant, or a buffer that the graph
  // does not write.
  bool is_fixed(const Input& input) const;
  bool operator==(const Graph&) const = default;
};

// Returns "loss", "parameter", ... as in the text form.
std::string_view name_of(Input::Kind kind);
std::string_view name_of(Output::Kind kind);

// Throws Error naming the node and its scope unless: every value has one producer and a type;
// nodes are in SSA order; operand and output indices are in range; a forward node precedes its
// backward nodes; arguments and names are unique; gradients and new buffers have the shapes of
// their parameters and buffers; constants have the right length; scopes are unique and follow
// their parents.
void verify(const Graph& graph);

// Returns the text form (perigee.graph/1), one line for each scope, input, node and output:
//   %12: float32[8, 32, 64] = aten::mm(self=%3, mat2=%7)   @blocks.0.attn forward
// %_ is no tensor, and numbers with a point or an exponent are double. An empty list of another
// type than int is []:value, []:double or []:bool. A constant's bytes are in base64. The scope ""
// is written as nothing.
std::string print(const Graph& graph);

// Returns one node's line of that text, without its end of line.
std::string print(const Graph& graph, const Node& node);

// Parses what `print` wrote. Throws Error with the line. parse(print(g)) equals g; it does
// not verify.
Graph parse(std::string_view text);

// Returns 32 hexadecimal digits (XXH3-128 over the canonical form). The numbering of values and
// values without a producer do not count; everything else does, also the order of inputs and nodes,
// since value_names depend on it.
std::string structural_hash(const Graph& graph);

// Returns up to ten lines that list differences of two graphs (scopes, inputs, the first differing
// node, outputs), or "" where their hashes are equal.
std::string difference(const Graph& a, const Graph& b);

// Returns a name for every value that is stable under renumbering: an input's own name, else
// `scope/op.k` with the op's name without namespace and overload and k counted within (scope, that
// name, phase), `'` before it in the backward phase (blocks.0.attn/mm.1, blocks.0.attn/'mm.0), and
// the suffix `:r` for a result r > 0. Values without a producer have the name "".
std::vector<std::string> value_names(const Graph& graph);

// Passes. Each returns the changed graph, its values numbered in the order of inputs and nodes.

// Removes values without a producer and numbers the others canonically.
Graph renumber(Graph graph);
// Removes nodes that no output needs, and constants that no node uses. Parameters, buffers, data,
// sends and receives stay.
Graph eliminate_dead_code(Graph graph);
// Merges nodes with the same op, arguments, operands, result types, scope and phase into the first
// of them. A node of another scope or phase is not merged: that would move work between stages, or
// keep a forward value for the backward. Random ops merge only with equal keys, collectives never.
Graph eliminate_common_subexpressions(Graph graph);

template <class F>
void Node::each_operand(F f) {
  for (auto& [name, arg] : args) {
    if (auto* v = std::get_if<ValueId>(&arg)) {
      if (v->defined()) f(*v);
    } else if (auto* list = std::get_if<std::vector<ValueId>>(&arg)) {
      for (auto& v : *list) {
        if (v.defined()) f(v);
      }
    }
  }
}

template <class F>
void Node::each_operand(F f) const {
  const_cast<Node*>(this)->each_operand([&](ValueId& v) { f(std::as_const(v)); });
}

inline ValueId Node::only_operand() const {
  ValueId only;
  each_operand([&](ValueId v) { only = v; });
  return only;
}

}  // namespace perigee::graph
