#include "graph/rewrite/match.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace perigee::graph {
namespace {

// The smallest prime factor.
int64_t factor_of(int64_t size) {
  for (int64_t f = 2; f * f <= size; ++f) {
    if (size % f == 0) return f;
  }
  return size;
}

int64_t product(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

std::optional<double> number_of(const Arg& arg) {
  if (const auto* i = std::get_if<int64_t>(&arg)) return static_cast<double>(*i);
  if (const auto* d = std::get_if<double>(&arg)) return *d;
  return std::nullopt;
}

// Commutative ops: sums and products of two tensors.
bool commutes(const Node& node) {
  return (node.op == "aten::add.Tensor" || node.op == "aten::mul.Tensor") &&
         node.args.size() == 2 && std::holds_alternative<ValueId>(node.args[0].second) &&
         std::holds_alternative<ValueId>(node.args[1].second);
}

bool stands_for_many(const std::vector<int64_t>& shape) {
  return !shape.empty() && shape[0] == kManyDims;
}

}  // namespace

bool is_symbolic(int64_t size) {
  if (size < kManyDims) return false;
  while (size > 1) {
    const auto factor = factor_of(size);
    if (factor < kManyDims) return false;
    size /= factor;
  }
  return true;
}

ValueId first_operand(const Node& node) {
  ValueId first;
  node.each_operand([&](ValueId v) {
    if (!first.defined()) first = v;
  });
  return first;
}

bool names_dims(std::string_view argument) {
  return argument == "dim" || argument == "dims" || argument == "dim0" || argument == "dim1";
}

Readers::Readers(const Graph& graph)
    : live(graph.nodes.size()), by_value(graph.values.size()), is_output(graph.values.size()) {
  std::vector<NodeId> open;
  const auto need = [&](ValueId v) {
    const auto n = graph.values[v.index].producer;
    if (n < 0 || live[n]) return;
    live[n] = true;
    open.push_back(n);
  };
  for (const auto& output : graph.outputs) {
    if (!output.value.defined()) continue;
    is_output[output.value.index] = true;
    need(output.value);
  }
  while (!open.empty()) {
    const auto n = open.back();
    open.pop_back();
    graph.nodes[n].each_operand(need);
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!live[n]) continue;
    graph.nodes[n].each_operand([&](ValueId v) {
      auto& readers = by_value[v.index];
      if (readers.empty() || readers.back() != static_cast<NodeId>(n)) {
        readers.push_back(static_cast<NodeId>(n));
      }
    });
  }
}

std::optional<int64_t> Binding::size(int64_t symbolic) const {
  if (!is_symbolic(symbolic)) return symbolic;
  int64_t result = 1;
  while (symbolic > 1) {
    const auto factor = factor_of(symbolic);
    symbolic /= factor;
    const auto found = sizes.find(factor);
    if (factor == kManyDims && many) {
      result *= product(*many);
    } else if (found != sizes.end()) {
      result *= found->second;
    } else {
      return std::nullopt;
    }
  }
  return result;
}

std::optional<int64_t> Binding::dim(int64_t dim, const std::vector<int64_t>& shape) const {
  if (dim < 0) dim += std::ssize(shape);
  if (!stands_for_many(shape)) return dim;
  if (!many || (dim == 0 && many->size() != 1)) return std::nullopt;
  return dim == 0 ? 0 : dim + std::ssize(*many) - 1;
}

Matcher::Matcher(const Graph& graph, const Readers& readers, const Graph& pattern)
    : graph_(graph), readers_(readers), pattern_(pattern) {}

bool Matcher::value(Binding& binding, ValueId of_pattern, ValueId of_graph) const {
  auto tried = binding;
  if (!try_value(tried, of_pattern, of_graph)) return false;
  binding = std::move(tried);
  return true;
}

bool Matcher::try_value(Binding& b, ValueId p, ValueId g) const {
  if (p.defined() != g.defined()) return false;
  if (!p.defined()) return true;
  if (b.values[p.index].defined()) return b.values[p.index] == g;
  if (!type(b, pattern_.type(p), graph_.type(g))) return false;
  const auto& of_pattern = pattern_.values[p.index];
  const auto& of_graph = graph_.values[g.index];
  if (of_pattern.producer < 0) {
    b.values[p.index] = g;
    return true;
  }
  if (of_graph.producer < 0 || of_graph.result != of_pattern.result) return false;
  return node(b, of_pattern.producer, of_graph.producer);
}

bool Matcher::node(Binding& b, NodeId of_pattern, NodeId of_graph) const {
  if (b.nodes[of_pattern] >= 0) return b.nodes[of_pattern] == of_graph;
  const auto& p = pattern_.nodes[of_pattern];
  const auto& g = graph_.nodes[of_graph];
  if (p.op != g.op || p.phase != g.phase || p.args.size() != g.args.size() ||
      p.outputs.size() != g.outputs.size() || !readers_.live[of_graph]) {
    return false;
  }
  if (std::find(b.nodes.begin(), b.nodes.end(), of_graph) != b.nodes.end()) return false;
  // A backward op must differentiate the forward op that its pattern node's does. Not so sums:
  // autograd records them for the last of the ops whose gradients they add.
  if (p.forward_node >= 0 && p.op != "aten::add.Tensor" &&
      g.forward_node != b.nodes[p.forward_node]) {
    return false;
  }
  b.nodes[of_pattern] = of_graph;
  for (size_t r = 0; r < p.outputs.size(); ++r) {
    if (!p.outputs[r].defined()) continue;
    if (!g.outputs[r].defined() ||
        !type(b, pattern_.type(p.outputs[r]), graph_.type(g.outputs[r]))) {
      return false;
    }
    b.values[p.outputs[r].index] = g.outputs[r];
  }
  auto tried = b;
  if (args(tried, p, g, false)) {
    b = std::move(tried);
    return true;
  }
  return commutes(p) && commutes(g) && args(b, p, g, true);
}

bool Matcher::args(Binding& b, const Node& p, const Node& g, bool swapped) const {
  for (size_t a = 0; a < p.args.size(); ++a) {
    const auto& name = swapped ? p.args[1 - a].first : p.args[a].first;
    const auto* other = g.find(name);
    if (!other || !arg(b, p, g, name, p.args[a].second, *other)) return false;
  }
  return true;
}

bool Matcher::arg(Binding& b, const Node& p, const Node& g, const std::string& name, const Arg& a,
                  const Arg& other) const {
  if (const auto* v = std::get_if<ValueId>(&a)) {
    const auto* of_graph = std::get_if<ValueId>(&other);
    return of_graph && try_value(b, *v, *of_graph);
  }
  if (const auto* list = std::get_if<std::vector<ValueId>>(&a)) {
    const auto* of_graph = std::get_if<std::vector<ValueId>>(&other);
    if (!of_graph || of_graph->size() != list->size()) return false;
    for (size_t i = 0; i < list->size(); ++i) {
      if (!try_value(b, (*list)[i], (*of_graph)[i])) return false;
    }
    return true;
  }
  if (names_dims(name)) {
    if (const auto* one = std::get_if<int64_t>(&a)) {
      const auto* of_graph = std::get_if<int64_t>(&other);
      return of_graph && dims(b, p, g, {*one}, {*of_graph});
    }
    if (const auto* list = std::get_if<std::vector<int64_t>>(&a)) {
      const auto* of_graph = std::get_if<std::vector<int64_t>>(&other);
      return of_graph && dims(b, p, g, *list, *of_graph);
    }
  }
  if (const auto* text = std::get_if<std::string>(&a); text && text->starts_with('?')) {
    const auto number = number_of(other);
    return number && b.numbers.emplace(*text, *number).first->second == *number;
  }
  if (const auto number = number_of(a)) {
    const auto of_graph = number_of(other);
    if (!of_graph) return false;
    const auto whole = static_cast<int64_t>(*number);
    if (static_cast<double>(whole) == *number && is_symbolic(whole)) {
      return std::trunc(*of_graph) == *of_graph && size(b, whole, static_cast<int64_t>(*of_graph));
    }
    return *number == *of_graph;
  }
  if (const auto* list = std::get_if<std::vector<int64_t>>(&a)) {
    const auto* of_graph = std::get_if<std::vector<int64_t>>(&other);
    if (!of_graph || of_graph->size() != list->size()) return false;
    for (size_t i = 0; i < list->size(); ++i) {
      if (!size(b, (*list)[i], (*of_graph)[i])) return false;
    }
    return true;
  }
  if (const auto* dtype = std::get_if<DType>(&a); dtype && *dtype == DType::float32) {
    const auto* of_graph = std::get_if<DType>(&other);
    return of_graph && b.dtype == *of_graph;
  }
  return a == other;
}

bool Matcher::type(Binding& b, const TensorType& p, const TensorType& g) const {
  if (p.dtype == DType::float32) {
    if (!is_floating(g.dtype)) return false;
    if (!b.dtype) b.dtype = g.dtype;
    if (*b.dtype != g.dtype) return false;
  } else if (p.dtype != g.dtype) {
    return false;
  }
  size_t first = 0, skipped = 0;
  if (stands_for_many(p.shape)) {
    if (g.shape.size() < p.shape.size()) return false;
    skipped = g.shape.size() - p.shape.size();
    const std::vector<int64_t> many(g.shape.begin(), g.shape.begin() + skipped + 1);
    if (!b.many) b.many = many;
    if (*b.many != many) return false;
    first = 1;
  } else if (b.many && !p.shape.empty() && p.shape[0] == 1 && g.shape.size() > p.shape.size()) {
    // The dims that kManyDims stands for, after a sum over them.
    skipped = g.shape.size() - p.shape.size();
    if (skipped + 1 != b.many->size()) return false;
    first = 1;
    if (std::any_of(g.shape.begin(), g.shape.begin() + skipped + 1,
                    [](int64_t size) { return size != 1; })) {
      return false;
    }
  } else if (g.shape.size() != p.shape.size()) {
    return false;
  }
  for (size_t d = first; d < p.shape.size(); ++d) {
    if (!size(b, p.shape[d], g.shape[d + skipped])) return false;
  }
  return true;
}

bool Matcher::size(Binding& b, int64_t p, int64_t g) const {
  if (const auto known = b.size(p)) return *known == g;
  if (p != kManyDims && factor_of(p) == p) {
    b.sizes[p] = g;
  } else {
    b.products.emplace_back(p, g);
  }
  return true;
}

bool Matcher::dims(Binding& b, const Node& p, const Node& g, const std::vector<int64_t>& of_pattern,
                   std::vector<int64_t> of_graph) const {
  const auto v = first_operand(p), w = first_operand(g);
  if (!v.defined() || !w.defined()) return false;
  const auto& shape = pattern_.type(v).shape;
  // An op that adds a dim counts dims of its result.
  const auto added = p.op == "aten::unsqueeze" ? 1 : 0;
  std::vector<int64_t> expected;
  for (auto dim : of_pattern) {
    if (dim < 0) dim += std::ssize(shape) + added;
    if (!stands_for_many(shape)) {
      expected.push_back(dim);
    } else if (!b.many) {
      return false;
    } else {
      const auto many = std::ssize(*b.many);
      if (dim > 0) expected.push_back(dim + many - 1);
      for (int64_t d = 0; dim == 0 && d < many; ++d) expected.push_back(d);
    }
  }
  for (auto& dim : of_graph) {
    if (dim < 0) dim += std::ssize(graph_.type(w).shape) + added;
  }
  return expected == of_graph;
}

bool Matcher::backward(Binding& binding, const std::vector<NodeId>& nodes) const {
  // Prefer a node with a bound operand: it has few candidates.
  NodeId next = -1;
  ValueId known;
  for (const auto n : nodes) {
    if (binding.nodes[n] >= 0) continue;
    if (next < 0) next = n;
    pattern_.nodes[n].each_operand([&](ValueId v) {
      if (!known.defined() && binding.values[v.index].defined()) {
        next = n;
        known = binding.values[v.index];
      }
    });
    if (known.defined()) break;
  }
  if (next < 0) return sizes_agree(binding);
  const auto attempt = [&](NodeId candidate) {
    auto tried = binding;
    if (!node(tried, next, candidate) || !backward(tried, nodes)) return false;
    binding = std::move(tried);
    return true;
  };
  if (known.defined()) {
    const auto& readers = readers_.by_value[known.index];
    return std::any_of(readers.begin(), readers.end(), attempt);
  }
  const auto forward = pattern_.nodes[next].forward_node;
  if (forward < 0 || binding.nodes[forward] < 0) return false;
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    if (graph_.nodes[n].forward_node != binding.nodes[forward]) continue;
    if (attempt(static_cast<NodeId>(n))) return true;
  }
  return false;
}

bool Matcher::sizes_agree(const Binding& binding) {
  return std::all_of(binding.products.begin(), binding.products.end(), [&](const auto& pair) {
    const auto known = binding.size(pair.first);
    return known && *known == pair.second;
  });
}

std::vector<NodeId> producers_of(const Graph& graph, const std::vector<ValueId>& values,
                                 Phase phase) {
  std::set<NodeId> found;
  std::vector<ValueId> open = values;
  while (!open.empty()) {
    const auto n = graph.values[open.back().index].producer;
    open.pop_back();
    if (n < 0 || !found.insert(n).second) continue;
    graph.nodes[n].each_operand([&](ValueId v) { open.push_back(v); });
  }
  std::erase_if(found, [&](NodeId n) { return graph.nodes[n].phase != phase; });
  return {found.begin(), found.end()};
}

}  // namespace perigee::graph
