#include "graph/graph.h"

#include "base/fail.h"

namespace perigee::graph {
namespace {

constexpr std::string_view kind_names[] = {"None", "value",   "value list", "bool",
                                           "int",  "double",  "string",     "dtype",
                                           "ints", "doubles", "bools"};

}  // namespace

int64_t TensorType::numel() const {
  int64_t n = 1;
  for (auto size : shape) n *= size;
  return n;
}

std::string_view name_of(Input::Kind kind) {
  constexpr std::string_view names[] = {"parameter", "buffer", "data", "constant"};
  return names[static_cast<size_t>(kind)];
}

std::string_view name_of(Output::Kind kind) {
  constexpr std::string_view names[] = {"loss", "gradient", "buffer", "result"};
  return names[static_cast<size_t>(kind)];
}

const Arg* Node::find(std::string_view arg) const {
  for (const auto& [name, value] : args) {
    if (name == arg) return &value;
  }
  return nullptr;
}

template <class T>
T Node::get(std::string_view arg, T otherwise) const {
  const Arg* found = find(arg);
  if (!found || std::holds_alternative<std::monostate>(*found)) return otherwise;
  if (auto* value = std::get_if<T>(found)) return *value;
  if constexpr (std::is_same_v<T, double>) {
    if (auto* integer = std::get_if<int64_t>(found)) return static_cast<double>(*integer);
    if (auto* flag = std::get_if<bool>(found)) return *flag ? 1.0 : 0.0;
  }
  fail("graph", "argument {} of {} in scope \"{}\" is a {}, but got {}", arg, op, scope,
       kind_names[Arg(otherwise).index()], kind_names[found->index()]);
}

template ValueId Node::get(std::string_view, ValueId) const;
template std::vector<ValueId> Node::get(std::string_view, std::vector<ValueId>) const;
template bool Node::get(std::string_view, bool) const;
template int64_t Node::get(std::string_view, int64_t) const;
template double Node::get(std::string_view, double) const;
template std::string Node::get(std::string_view, std::string) const;
template DType Node::get(std::string_view, DType) const;
template std::vector<int64_t> Node::get(std::string_view, std::vector<int64_t>) const;
template std::vector<double> Node::get(std::string_view, std::vector<double>) const;
template std::vector<bool> Node::get(std::string_view, std::vector<bool>) const;

bool contains_scope(std::string_view outer, std::string_view scope) {
  return outer.empty() || scope == outer ||
         (scope.starts_with(outer) && scope[outer.size()] == '.');
}

ValueId Graph::add_value(TensorType type) {
  values.push_back({std::move(type), -1, 0});
  return {static_cast<int32_t>(values.size()) - 1};
}

ValueId Graph::add_input(Input::Kind kind, std::string name, TensorType type) {
  const ValueId value = add_value(std::move(type));
  inputs.push_back({.kind = kind, .name = std::move(name), .value = value});
  return value;
}

std::vector<ValueId> Graph::add_node(std::string op, std::vector<std::pair<std::string, Arg>> args,
                                     std::vector<TensorType> types, std::string scope,
                                     Phase phase) {
  Node node{std::move(op), std::move(args), {}, std::move(scope), phase, -1};
  const auto id = static_cast<NodeId>(nodes.size());
  for (auto& type : types) {
    const auto result = static_cast<int32_t>(node.outputs.size());
    node.outputs.push_back(add_value(std::move(type)));
    values.back().producer = id;
    values.back().result = result;
  }
  nodes.push_back(std::move(node));
  return nodes.back().outputs;
}

const Input* Graph::find_input(std::string_view name) const {
  for (const auto& input : inputs) {
    if (input.name == name) return &input;
  }
  return nullptr;
}

const Output* Graph::find_output(Output::Kind kind, std::string_view name) const {
  for (const auto& output : outputs) {
    if (output.kind == kind && output.name == name) return &output;
  }
  return nullptr;
}

bool Graph::is_fixed(const Input& input) const {
  return input.kind == Input::Kind::constant ||
         (input.kind == Input::Kind::buffer && !find_output(Output::Kind::buffer, input.name));
}

}  // namespace perigee::graph
