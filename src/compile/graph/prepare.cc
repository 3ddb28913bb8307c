#include "compile/graph/prepare.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "base/fail.h"
#include "compile/draft/lower.h"
#include "compile/graph/autocast.h"
#include "graph/ops.h"

namespace perigee::compile {

using graph::Graph;
using graph::Input;
using graph::Node;
using graph::Output;

namespace {

void check_parameters(const Graph& graph, const std::vector<std::string>& names, const char* what) {
  std::vector<std::string> known;
  for (const auto& input : graph.inputs) {
    if (input.kind == Input::Kind::parameter) known.push_back(input.name);
  }
  for (const auto& name : names) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      fail("compile", "{} must name a parameter of the model, but got '{}'{}", what, name,
           did_you_mean(name, known));
    }
  }
}

// Returns the value that finally replaces `v`.
graph::ValueId resolve(std::vector<graph::ValueId>& replaced, graph::ValueId v) {
  while (replaced[v.index] != v) v = replaced[v.index];
  return v;
}

std::pair<int64_t, int64_t> swapped_dims(const Node& node, size_t rank) {
  if (node.op == "aten::t") return {0, rank < 2 ? 0 : 1};
  const auto size = static_cast<int64_t>(rank);
  int64_t a = node.get<int64_t>("dim0", 0), b = node.get<int64_t>("dim1", 0);
  if (a < 0) a += size;
  if (b < 0) b += size;
  return {std::min(a, b), std::max(a, b)};
}

bool swaps(const Node& node) { return node.op == "aten::t" || node.op == "aten::transpose.int"; }

// Returns, by node, whether an output of the wanted kind needs it.
std::vector<bool> needed_for(const Graph& graph, bool (*wanted)(Output::Kind)) {
  std::vector<bool> values(graph.values.size()), nodes(graph.nodes.size());
  for (const auto& output : graph.outputs) {
    if (output.value.defined() && wanted(output.kind)) values[output.value.index] = true;
  }
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const auto& node = graph.nodes[n];
    nodes[n] = std::any_of(node.outputs.begin(), node.outputs.end(),
                           [&](graph::ValueId v) { return v.defined() && values[v.index]; });
    if (nodes[n]) node.each_operand([&](graph::ValueId v) { values[v.index] = true; });
  }
  return nodes;
}

bool is_buffer(Output::Kind kind) { return kind == Output::Kind::buffer; }
bool is_no_buffer(Output::Kind kind) { return kind != Output::Kind::buffer; }

class KeepBuffers {
 public:
  KeepBuffers(const Graph& graph, bool apart)
      : graph_(graph),
        result_(graph),
        apart_(apart),
        shown_(graph.values.size()),
        written_(graph.values.size()),
        last_(graph.values.size(), -1),
        kept_(graph.values.size()),
        reads_late_(graph.nodes.size()),
        moved_(graph.nodes.size(), -1) {
    result_.nodes.clear();
    find_shown();
    if (apart) find_read_late();
    find_outputs();
  }

  Graph run() && {
    if (!any_) return graph_;
    for (const auto& input : graph_.inputs) keep(input.value, "");
    keep_outputs(-1);
    for (graph::NodeId n = 0; n < std::ssize(graph_.nodes); ++n) {
      Node node = graph_.nodes[n];
      if (node.forward_node >= 0) node.forward_node = moved_[node.forward_node];
      if (reads_late_[n]) {
        node.each_operand([&](graph::ValueId& v) {
          if (kept_[v.index].copy.defined()) v = kept_[v.index].copy;
        });
      }
      const auto scope = node.scope;
      moved_[n] = append(result_, std::move(node));
      for (const auto v : graph_.nodes[n].outputs) {
        if (v.defined()) keep(v, scope);
      }
      keep_outputs(n);
    }
    return std::move(result_);
  }

 private:
  struct Kept {
    bool wanted = false;
    graph::ValueId copy;
  };

  // Finds the inputs of which values are, or may be, views, and the last nodes of the forward pass
  // that read these inputs, or that make new values of buffers.
  void find_shown() {
    for (const auto& input : graph_.inputs) {
      shown_[input.value.index] = input.value;
      written_[input.value.index] = input.kind == Input::Kind::buffer && !graph_.is_fixed(input);
    }
    for (graph::NodeId n = 0; n < std::ssize(graph_.nodes); ++n) {
      const auto& node = graph_.nodes[n];
      graph::ValueId first;
      node.each_operand([&](graph::ValueId v) {
        if (!first.defined()) first = v;
        const auto input = shown_[v.index];
        if (input.defined() && node.phase == graph::Phase::forward) last_[input.index] = n;
      });
      if (!first.defined() || !shows_operand(node.op)) continue;
      for (const auto v : node.outputs) {
        if (v.defined()) shown_[v.index] = shown_[first.index];
      }
    }
    for (const auto& output : graph_.outputs) {
      if (output.kind != Output::Kind::buffer || !output.value.defined()) continue;
      auto& last = last_[graph_.find_input(output.name)->value.index];
      last = std::max(last, graph_.values[output.value.index].producer);
    }
  }

  // Finds the values that gradients need. Nodes of the backward pass that only make new values of
  // buffers read the latest ones.
  void find_read_late() {
    reads_late_ = needed_for(graph_, is_no_buffer);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const auto& node = graph_.nodes[n];
      if (node.phase == graph::Phase::forward) reads_late_[n] = false;
      if (!reads_late_[n]) continue;
      node.each_operand([&](graph::ValueId v) {
        const auto producer = graph_.values[v.index].producer;
        // A view of the backward pass reads a copy itself.
        const bool own = producer >= 0 && graph_.nodes[producer].phase == graph::Phase::backward;
        if (shows_written(v) && !own) kept_[v.index].wanted = any_ = true;
      });
    }
  }

  void find_outputs() {
    for (size_t o = 0; o < graph_.outputs.size(); ++o) {
      const auto& [kind, name, v] = graph_.outputs[o];
      if (kind == Output::Kind::gradient || !v.defined() || !shown_[v.index].defined()) continue;
      const auto producer = graph_.values[v.index].producer;
      // An input that a buffer takes as it is: the copy tells the stage that has the buffer.
      const bool given = apart_ && producer < 0 && kind == Output::Kind::buffer;
      if (!shows_written(v) && !given) continue;
      auto at = std::max(last_[shown_[v.index].index], producer);
      if (kind == Output::Kind::buffer) {
        const auto own = graph_.find_input(name)->value;
        if (own == v) continue;
        at = std::max(at, last_[own.index]);
      }
      outputs_[at].push_back(o);
      any_ = true;
    }
  }

  bool shows_written(graph::ValueId v) const {
    return shown_[v.index].defined() && written_[shown_[v.index].index];
  }

  graph::ValueId add_copy(graph::ValueId v, const Node& like) {
    const auto copy = result_.add_value(graph_.type(v));
    append(result_, {.op = "aten::clone",
                     .args = {{"self", v}, {"memory_format", int64_t{0}}},
                     .outputs = {copy},
                     .scope = like.scope,
                     .phase = like.phase,
                     .forward_node = like.forward_node});
    return copy;
  }

  void keep(graph::ValueId v, const std::string& scope) {
    if (kept_[v.index].wanted) kept_[v.index].copy = add_copy(v, {.scope = scope});
  }

  // Copies the outputs whose buffers node n is the last to use. The copies belong to its part of a
  // pipeline, too.
  void keep_outputs(graph::NodeId n) {
    const auto found = outputs_.find(n);
    if (found == outputs_.end()) return;
    const Node like = n < 0 ? Node() : result_.nodes[moved_[n]];
    for (const auto o : found->second) {
      result_.outputs[o].value = add_copy(graph_.outputs[o].value, like);
    }
  }

  const Graph& graph_;
  Graph result_;
  const bool apart_;
  std::vector<graph::ValueId> shown_;  // by value: the input that it shows
  std::vector<bool> written_;          // by value: it is the input of a written buffer
  std::vector<graph::NodeId> last_;    // by value that is an input
  std::vector<Kept> kept_;             // by value: those that the backward pass reads
  std::vector<bool> reads_late_;       // by node: of the backward pass, that reads copies
  std::map<graph::NodeId, std::vector<size_t>> outputs_;  // to copy after the node
  std::vector<graph::NodeId> moved_;  // by node of the graph: its place in the result
  bool any_ = false;
};

}  // namespace

Graph select_outputs(Graph graph, const StepSpec& spec) {
  check_parameters(graph, spec.frozen, "a frozen parameter");
  for (const auto& group : spec.groups) {
    check_parameters(graph, group.parameters, "an optimizer group");
  }
  for (const auto& name : spec.results) {
    if (!graph.find_output(Output::Kind::result, name)) {
      fail("compile", "a result must be an output of the graph, but got '{}'", name);
    }
  }
  const std::set<std::string> frozen(spec.frozen.begin(), spec.frozen.end());
  const std::set<std::string> results(spec.results.begin(), spec.results.end());
  std::erase_if(graph.outputs, [&](const Output& output) {
    switch (output.kind) {
      case Output::Kind::loss:
        return false;
      case Output::Kind::gradient:
        return spec.evaluation || frozen.contains(output.name);
      case Output::Kind::buffer:
        return spec.evaluation;
      case Output::Kind::result:
        return !results.contains(output.name);
    }
    return false;
  });
  return graph;
}

Graph simplify_views(Graph graph) {
  std::vector<graph::ValueId> replaced(graph.values.size());
  for (size_t v = 0; v < replaced.size(); ++v) replaced[v].index = static_cast<int32_t>(v);
  // Whether a local reshape has an effect differs by rank; outputs are treated the same on
  // all ranks.
  std::vector<bool> stays(graph.values.size());
  std::vector<int> readers(graph.values.size());
  std::vector<graph::ValueId> reshaped(graph.values.size());  // gradients: their first reshape
  for (const auto& output : graph.outputs) {
    if (output.value.defined()) stays[output.value.index] = true;
  }
  for (const auto& node : graph.nodes) {
    node.each_operand([&](graph::ValueId v) { ++readers[v.index]; });
  }
  for (auto& node : graph.nodes) {
    node.each_operand([&](graph::ValueId& v) { v = resolve(replaced, v); });
    if (node.outputs.size() != 1 || !node.outputs[0].defined() || node.find("part")) continue;
    const auto* self = node.find("self");
    if (!self || !std::holds_alternative<graph::ValueId>(*self)) continue;
    const auto operand = std::get<graph::ValueId>(*self);
    if (!operand.defined()) continue;
    const auto out = node.outputs[0];
    const auto& from = graph.type(operand);
    const auto producer = graph.values[operand.index].producer;
    const Node* before = producer < 0 ? nullptr : &graph.nodes[producer];
    const bool same_type = from == graph.type(out) && !stays[out.index];
    if (node.op == "aten::detach" || node.op == "aten::alias" ||
        (same_type && (node.op == "perigee::reshape" || node.op == "perigee::expand"))) {
      replaced[out.index] = operand;
    } else if (swaps(node) && before && swaps(*before) &&
               swapped_dims(node, from.shape.size()) == swapped_dims(*before, from.shape.size())) {
      replaced[out.index] = std::get<graph::ValueId>(*before->find("self"));
    } else if (node.op == "perigee::reshape" && node.phase == graph::Phase::backward &&
               reshaped[operand.index].defined()) {
      // Where the first reshape copies, the second one is a view of the copy.
      for (auto& [name, arg] : node.args) {
        if (name == "self") arg = reshaped[operand.index];
      }
    } else if (node.op == "perigee::reshape" && before && before->op == "perigee::reshape" &&
               !before->find("part")) {
      const auto source = std::get<graph::ValueId>(*before->find("self"));
      if (!stays[out.index] && graph.type(source) == graph.type(out)) {
        replaced[out.index] = source;
      } else if (readers[operand.index] == 1) {
        // With other readers, the first reshape, which may copy, would be done twice.
        for (auto& [name, arg] : node.args) {
          if (name == "self") arg = source;
        }
      }
    } else if (node.op == "perigee::reshape" && node.phase == graph::Phase::backward) {
      reshaped[operand.index] = out;
    }
  }
  for (auto& output : graph.outputs) {
    if (output.value.defined()) output.value = resolve(replaced, output.value);
  }
  return graph::eliminate_dead_code(std::move(graph));
}

Graph write_buffers_early(const Graph& graph) {
  const auto of_buffers = needed_for(graph, is_buffer), of_others = needed_for(graph, is_no_buffer);
  constexpr graph::NodeId kStays = -2;
  // By node: the one after which it moves, or kStays; by input: the last node of the forward pass
  // that reads it.
  std::vector<graph::NodeId> after(graph.nodes.size(), kStays), last(graph.values.size(), -1);
  std::map<graph::NodeId, std::vector<graph::NodeId>> moving;
  for (graph::NodeId n = 0; n < std::ssize(graph.nodes); ++n) {
    const auto& node = graph.nodes[n];
    if (node.phase == graph::Phase::forward) {
      node.each_operand([&](graph::ValueId v) { last[v.index] = n; });
    } else if (of_buffers[n] && !of_others[n]) {
      graph::NodeId place = -1;
      bool early = true;
      node.each_operand([&](graph::ValueId v) {
        const auto producer = graph.values[v.index].producer;
        if (producer >= 0 && graph.nodes[producer].phase == graph::Phase::backward) {
          early = early && after[producer] != kStays;
          place = std::max(place, after[producer]);
        } else {
          place = std::max(place, producer < 0 ? last[v.index] : producer);
        }
      });
      if (!early) continue;
      after[n] = place;
      moving[place].push_back(n);
    }
  }
  if (moving.empty()) return graph;
  Graph result = graph;
  result.nodes.clear();
  std::vector<graph::NodeId> moved(graph.nodes.size(), -1);
  const auto move_after = [&](graph::NodeId place) {
    for (const auto n : moving[place]) {
      Node node = graph.nodes[n];
      node.phase = graph::Phase::forward;
      node.forward_node = -1;
      node.scope = place < 0 ? "" : graph.nodes[place].scope;
      moved[n] = append(result, std::move(node));
    }
  };
  move_after(-1);
  for (graph::NodeId n = 0; n < std::ssize(graph.nodes); ++n) {
    if (after[n] == kStays) {
      Node node = graph.nodes[n];
      if (node.forward_node >= 0) node.forward_node = moved[node.forward_node];
      moved[n] = append(result, std::move(node));
    }
    if (moving.contains(n)) move_after(n);
  }
  return result;
}

Graph keep_buffers(const Graph& graph, bool apart) { return KeepBuffers(graph, apart).run(); }

}  // namespace perigee::compile
