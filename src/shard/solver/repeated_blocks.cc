#include "shard/solver/repeated_blocks.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace perigee::shard {
namespace {

using graph::Graph;

// "blocks.3.attn" -> {"blocks", "3", "attn"}: cut at its first number. Nothing without one.
struct Scope {
  std::string_view parent, number, rest;
};

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool cut(std::string_view path, Scope& scope) {
  for (size_t begin = 0; begin <= path.size();) {
    const auto end = std::min(path.find('.', begin), path.size());
    if (is_number(path.substr(begin, end - begin))) {
      scope.parent = path.substr(0, begin);
      scope.number = path.substr(begin, end - begin);
      scope.rest = path.substr(std::min(end + 1, path.size()));
      return true;
    }
    begin = end + 1;
  }
  return false;
}

}  // namespace

std::string_view block_of(std::string_view scope) {
  Scope parts;
  if (!cut(scope, parts)) return {};
  return scope.substr(
      0, static_cast<size_t>(parts.number.data() - scope.data()) + parts.number.size());
}

std::vector<size_t> first_readers(const Graph& graph) {
  std::vector<size_t> first(graph.values.size(), 0);
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    graph.nodes[n].each_operand([&](graph::ValueId v) { first[v.index] = n; });
  }
  return first;
}

std::vector<size_t> find_representatives(const Graph& graph, const ShardingOptions& node_options,
                                         size_t period) {
  std::vector<size_t> representative(graph.nodes.size());
  using Name = std::pair<std::string_view, std::string_view>;  // parent, number
  std::map<Name, std::vector<size_t>> nodes;
  std::vector<Name> order;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    representative[n] = n;
    Scope scope;
    if (!cut(graph.nodes[n].scope, scope)) continue;
    auto& list = nodes[{scope.parent, scope.number}];
    if (list.empty()) order.emplace_back(scope.parent, scope.number);
    list.push_back(n);
  }
  const auto types_of = [&](const graph::Node& node) {
    std::vector<const graph::TensorType*> types;
    node.each_operand([&](graph::ValueId v) { types.push_back(&graph.type(v)); });
    for (auto v : node.outputs) types.push_back(v.defined() ? &graph.type(v) : nullptr);
    return types;
  };
  const auto same_types = [&](const graph::Node& a, const graph::Node& b) {
    const auto x = types_of(a), y = types_of(b);
    return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                      [](auto* p, auto* q) { return p == q || (p && q && *p == *q); });
  };
  const auto same = [&](size_t a, size_t b) {
    const auto &x = graph.nodes[a], &y = graph.nodes[b];
    Scope p, q;
    return x.op == y.op && x.phase == y.phase && x.outputs.size() == y.outputs.size() &&
           node_options.number(a) == node_options.number(b) && cut(x.scope, p) && cut(y.scope, q) &&
           p.rest == q.rest && same_types(x, y);
  };
  struct Kind {
    std::vector<const std::vector<size_t>*> first;  // of its blocks
    size_t blocks = 0;
  };
  std::map<std::string_view, std::vector<Kind>> kinds;  // by parent
  for (const auto& name : order) {
    const auto& own = nodes[name];
    auto& known = kinds[name.first];
    auto kind = std::find_if(known.begin(), known.end(), [&](const Kind& other) {
      return std::equal(own.begin(), own.end(), other.first[0]->begin(), other.first[0]->end(),
                        same);
    });
    if (kind == known.end()) kind = known.insert(known.end(), Kind());
    const size_t turn = kind->blocks++ % period;
    if (turn == kind->first.size()) {
      kind->first.push_back(&own);
      continue;
    }
    for (size_t k = 0; k < own.size(); ++k) representative[own[k]] = (*kind->first[turn])[k];
  }
  return representative;
}

}  // namespace perigee::shard
