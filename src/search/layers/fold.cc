#include "search/layers/fold.h"

#include <algorithm>
#include <map>

#include "base/fail.h"
#include "graph/flops.h"

namespace perigee::search {
namespace {

using graph::Graph;
using graph::Node;
using graph::NodeId;
using graph::Output;
using graph::Phase;
using graph::ValueId;

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Returns the index of the block that holds the scope, or -1.
int block_of(const std::map<std::string, int>& blocks, std::string_view scope) {
  for (size_t dot = scope.find('.');; dot = scope.find('.', dot + 1)) {
    const auto found = blocks.find(std::string(scope.substr(0, dot)));
    if (found != blocks.end()) return found->second;
    if (dot == std::string_view::npos) return -1;
  }
}

// A value by its position: the node within the block, and the result of that node.
struct Position {
  size_t node = 0;
  int32_t result = 0;
};

class Folding {
 public:
  Folding(const Graph& graph, const std::vector<std::string>& blocks)
      : old_(graph), count_(static_cast<int>(blocks.size())), nodes_(blocks.size()) {
    for (int b = 0; b < count_; ++b) index_[blocks[b]] = b;
    block_.resize(graph.nodes.size());
    place_.resize(graph.nodes.size());
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      block_[n] = block_of(index_, graph.nodes[n].scope);
      if (block_[n] < 0) continue;
      auto& list = nodes_[block_[n]];
      place_[n] = list.size();
      list.push_back(static_cast<NodeId>(n));
    }
  }

  bool identical() const {
    return std::all_of(nodes_.begin() + 1, nodes_.end(), [&](const auto& list) {
      if (list.size() != nodes_[0].size()) return false;
      for (size_t i = 0; i < list.size(); ++i) {
        if (!same(old_.nodes[nodes_[0][i]], old_.nodes[list[i]])) return false;
      }
      return true;
    });
  }

  // Returns whether the forward pass of each block depends on that of the one before it.
  bool chained() const {
    std::vector<int> latest(old_.values.size(), -1);  // block on which a value depends
    std::vector<bool> follows(nodes_.size());
    for (size_t n = 0; n < old_.nodes.size(); ++n) {
      const auto& node = old_.nodes[n];
      if (node.phase != Phase::forward) continue;
      const int own = block_[n];
      int last = own;
      node.each_operand([&](ValueId v) {
        if (own > 0 && latest[v.index] == own - 1) follows[own] = true;
        last = std::max(last, latest[v.index]);
      });
      for (const auto v : node.outputs) {
        if (v.defined()) latest[v.index] = last;
      }
    }
    return std::all_of(follows.begin() + 1, follows.end(), [](bool f) { return f; });
  }

  Graph run() {
    Graph out;
    map_.resize(old_.values.size());
    for (const auto& scope : old_.scopes) {
      if (!is_folded(block_of(index_, scope.path))) out.scopes.push_back(scope);
    }
    for (const auto& input : old_.inputs) {
      if (is_folded(block_of(index_, input.name))) continue;
      map_[input.value.index] = out.add_value(old_.type(input.value));
      out.inputs.push_back(input);
      out.inputs.back().value = map_[input.value.index];
    }
    std::vector<NodeId> moved(old_.nodes.size(), -1);
    for (size_t n = 0; n < old_.nodes.size(); ++n) {
      if (is_folded(block_[n])) continue;
      Node node = old_.nodes[n];
      node.each_operand([&](ValueId& v) { v = mapped(v); });
      moved[n] = static_cast<NodeId>(out.nodes.size());
      for (size_t k = 0; k < node.outputs.size(); ++k) {
        auto& v = node.outputs[k];
        if (!v.defined()) continue;
        const auto old = v;
        v = out.add_value(old_.type(old));
        out.values[v.index].producer = moved[n];
        out.values[v.index].result = static_cast<int32_t>(k);
        map_[old.index] = v;
      }
      if (node.forward_node >= 0) node.forward_node = moved[node.forward_node];
      out.nodes.push_back(std::move(node));
    }
    for (auto output : old_.outputs) {
      if (is_folded(block_of(index_, output.name))) continue;
      if (output.value.defined()) output.value = mapped(output.value);
      out.outputs.push_back(std::move(output));
    }
    return graph::eliminate_dead_code(std::move(out));
  }

 private:
  bool is_folded(int block) const { return block > 0 && block < count_ - 1; }

  // Returns the folded graph's value for a value of the whole graph.
  ValueId mapped(ValueId v) const {
    const auto producer = old_.values[v.index].producer;
    if (producer >= 0 && is_folded(block_[producer])) {
      const bool forward = old_.nodes[producer].phase == Phase::forward;
      const auto twin = nodes_[forward ? 0 : count_ - 1][place_[producer]];
      v = old_.nodes[twin].outputs[old_.values[v.index].result];
    }
    const auto to = map_[v.index];
    if (!to.defined()) fail("search", "blocks must follow each other, but do not");
    return to;
  }

  bool same(const Node& a, const Node& b) const {
    if (a.op != b.op || a.phase != b.phase || a.outputs.size() != b.outputs.size() ||
        a.args.size() != b.args.size()) {
      return false;
    }
    for (size_t k = 0; k < a.outputs.size(); ++k) {
      if (a.outputs[k].defined() != b.outputs[k].defined()) return false;
      if (a.outputs[k].defined() && old_.type(a.outputs[k]) != old_.type(b.outputs[k])) {
        return false;
      }
    }
    for (size_t k = 0; k < a.args.size(); ++k) {
      if (a.args[k].first != b.args[k].first) return false;
      if (a.args[k].first == "key" || a.args[k].first == "random_key") continue;
      const auto &x = a.args[k].second, &y = b.args[k].second;
      if (x.index() != y.index()) return false;
      if (std::holds_alternative<ValueId>(x)) {
        const auto v = std::get<ValueId>(x), w = std::get<ValueId>(y);
        if (v.defined() != w.defined() || (v.defined() && old_.type(v) != old_.type(w))) {
          return false;
        }
      } else if (std::holds_alternative<std::vector<ValueId>>(x)) {
        const auto &v = std::get<std::vector<ValueId>>(x), &w = std::get<std::vector<ValueId>>(y);
        if (v.size() != w.size()) return false;
      } else if (x != y) {
        return false;
      }
    }
    return true;
  }

  const Graph& old_;
  const int count_;
  std::map<std::string, int> index_;
  std::vector<int> block_;                  // by node
  std::vector<size_t> place_;               // by node: position in its block
  std::vector<std::vector<NodeId>> nodes_;  // by block
  std::vector<ValueId> map_;
};

// Returns the scope of the first op after the blocks; "" where that is one around them: a pipeline
// cannot be cut there by name.
std::string epilogue_scope(const Graph& graph, const std::vector<std::string>& blocks) {
  if (blocks.empty()) return "";
  bool seen = false;
  for (const auto& node : graph.nodes) {
    if (node.phase != Phase::forward) continue;
    const bool within = graph::contains_scope(blocks.back(), node.scope);
    if (seen && !within) return graph::contains_scope(node.scope, blocks.back()) ? "" : node.scope;
    seen = seen || within;
  }
  return "";
}

// A list has no forward pass: its modules are what may be a block.
bool is_list(const Graph& graph, const std::string& path) {
  const auto scope = std::ranges::find(graph.scopes, path, &graph::Scope::path);
  return scope != graph.scopes.end() && scope->type == "ModuleList";
}

// Returns whether a scope is a numbered module or within one. Numbered lists do not count.
bool within_block(const Graph& graph, const std::string& path) {
  for (size_t dot = path.find('.');; dot = path.find('.', dot + 1)) {
    const auto outer = path.substr(0, dot);
    const auto name = outer.substr(outer.rfind('.') + 1);  // all of it without a dot
    if (is_number(name) && !is_list(graph, outer)) return true;
    if (dot == std::string::npos) return false;
  }
}

// Returns the flops of the forward ops in each module of the list.
std::vector<double> arithmetic_of(const Graph& graph, const std::vector<std::string>& modules) {
  std::map<std::string, int> index;
  for (size_t m = 0; m < modules.size(); ++m) index[modules[m]] = static_cast<int>(m);
  std::vector<double> flops(modules.size());
  for (const auto& node : graph.nodes) {
    const int m = node.phase == Phase::forward ? block_of(index, node.scope) : -1;
    if (m >= 0) flops[static_cast<size_t>(m)] += graph::flops_of(graph, node);
  }
  return flops;
}

// Returns the arithmetic from each block to the next one.
std::vector<double> weights_of(const Graph& graph, const std::vector<std::string>& blocks) {
  std::map<std::string, int> index;
  for (size_t b = 0; b < blocks.size(); ++b) index[blocks[b]] = static_cast<int>(b);
  std::vector<double> weights(blocks.size());
  int at = 0;
  for (const auto& node : graph.nodes) {
    if (node.phase != Phase::forward) continue;
    at = std::max(at, block_of(index, node.scope));
    weights[static_cast<size_t>(at)] += graph::flops_of(graph, node);
  }
  return weights;
}

}  // namespace

Arithmetic arithmetic_of(const Folded& folded) {
  Arithmetic all;
  if (!folded.weights.empty() || folded.blocks.empty()) {
    all.blocks = folded.weights;
    return all;
  }
  std::map<std::string, int> index;
  for (size_t b = 0; b < folded.kept.size(); ++b) index[folded.kept[b]] = static_cast<int>(b);
  double first = 0;  // from the first block to the next one, or to the end
  for (int at = -1; const auto& node : folded.graph.nodes) {
    if (node.phase != Phase::forward) continue;
    at = std::max(at, block_of(index, node.scope));
    (at < 0 ? all.prologue : at == 0 ? first : all.epilogue) += graph::flops_of(folded.graph, node);
  }
  // All blocks are identical: of the last one's ops and those after it these are the epilogue's.
  if (folded.kept.size() > 1) {
    all.epilogue = std::max(0.0,
                            all.epilogue - first * static_cast<double>(folded.kept.size() - 1));
  }
  all.blocks.assign(folded.blocks.size(), first);
  return all;
}

std::vector<std::string> row_of_blocks(const Graph& graph) {
  std::map<std::string, std::vector<std::string>> rows;
  for (const auto& scope : graph.scopes) {
    const auto dot = scope.path.rfind('.');
    const auto last = scope.path.substr(dot == std::string::npos ? 0 : dot + 1);
    const auto parent = dot == std::string::npos ? "" : scope.path.substr(0, dot);
    if (!is_number(last) || is_list(graph, scope.path) || within_block(graph, parent)) continue;
    rows[parent].push_back(scope.path);
  }
  std::map<std::string, double> flops;
  double most = 0;
  for (const auto& [parent, row] : rows) {
    for (double one : arithmetic_of(graph, row)) flops[parent] += one;
    most = std::max(most, flops[parent]);
  }
  std::vector<std::string> best;
  for (const auto& [parent, row] : rows) {
    if (flops[parent] >= kLeastShare * most) best.insert(best.end(), row.begin(), row.end());
  }
  // In forward order.
  std::map<std::string, int> index;
  for (size_t b = 0; b < best.size(); ++b) index[best[b]] = static_cast<int>(b);
  std::vector<std::string> ordered;
  std::vector<bool> seen(best.size());
  for (const auto& node : graph.nodes) {
    if (node.phase != Phase::forward) continue;
    const int b = block_of(index, node.scope);
    if (b < 0 || seen[b]) continue;
    seen[b] = true;
    ordered.push_back(best[b]);
  }
  return ordered;
}

Folded fold(const Graph& graph) {
  Folded folded;
  folded.blocks = row_of_blocks(graph);
  folded.epilogue = epilogue_scope(graph, folded.blocks);
  folded.kept = folded.blocks;
  folded.graph = graph;
  if (folded.blocks.size() < 2) return folded;
  Folding folding(graph, folded.blocks);
  if (!folding.identical() || !folding.chained()) {
    folded.weights = weights_of(graph, folded.blocks);
    return folded;
  }
  if (folded.blocks.size() < 3) return folded;
  try {
    auto small = folding.run();
    graph::verify(small);
    folded.graph = std::move(small);
    folded.kept = {folded.blocks.front(), folded.blocks.back()};
  } catch (const Error&) {
    // Not a chain of blocks: each counts for itself.
  }
  return folded;
}

std::vector<int> places_of(const Folded& folded, const std::vector<std::string>& starts) {
  std::vector<int> places;
  auto known = folded.blocks;
  if (!folded.epilogue.empty()) known.push_back(folded.epilogue);
  for (const auto& name : starts) {
    const auto place = std::ranges::find(known, name);
    const int index = static_cast<int>(place - known.begin());
    if (place == known.end() || index <= (places.empty() ? -1 : places.back())) {
      fail("auto",
           "starts names blocks, or the module after them, in the order of the forward pass{}, but "
           "got \"{}\"{}",
           folded.blocks.size() < 2 ? " (the model has no row of them)"
                                    : fmt::format(" ({} to {})", known.front(), known.back()),
           name, did_you_mean(name, known));
    }
    places.push_back(index);
  }
  return places;
}

const std::string& start_at(const Folded& folded, int place) {
  const auto index = static_cast<size_t>(place);
  return index < folded.blocks.size() ? folded.blocks[index] : folded.epilogue;
}

}  // namespace perigee::search
