#include "compile/graph/recompute.h"

#include <algorithm>
#include <string_view>

#include "compile/draft/lower.h"
#include "compile/graph/repeat.h"
#include "graph/flops.h"
#include "graph/ops.h"
#include "plan/pipeline.h"

namespace perigee::compile {

using graph::Graph;
using graph::Node;
using graph::NodeId;
using graph::Phase;
using graph::ValueId;

namespace {

bool is_listed(const std::vector<std::string>& list, std::string_view op) {
  return std::find(list.begin(), list.end(), op) != list.end();
}

// Returns the region of every node, -1 where it is in none.
std::vector<int> regions_of(const Graph& graph, const plan::Recompute& plan) {
  std::vector<int> regions(graph.nodes.size(), -1);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto& node = graph.nodes[n];
    if (node.phase != Phase::forward) continue;
    for (size_t r = 0; r < plan.regions.size() && regions[n] < 0; ++r) {
      for (const auto& scope : plan.regions[r]) {
        if (graph::contains_scope(scope, node.scope)) regions[n] = static_cast<int>(r);
      }
    }
  }
  return regions;
}

// Returns whether an op of a region is recomputed. Averages over a step's microbatches are known
// before the first one and are not.
bool is_repeated(const plan::Recompute& plan, const std::string& op) {
  if (op == "perigee::step_average") return false;
  // A message is received once.
  if (op == plan::kCross) return false;
  // Scales: their histories may have changed since the forward pass.
  if (op == "perigee::fp8_scale" || op == "perigee::fp8_held") return false;
  return plan.only.empty() || is_listed(plan.only, op) || graph::is_view(op) ||
         op == "perigee::reshape";
}

// Returns whether the node is batch norm of a microbatch's own statistics: it reads buffers only to
// update them.
bool trains_norm(const Node& node) {
  return node.op == "aten::_native_batch_norm_legit_functional" && node.get<bool>("training", true);
}

class Recomputed {
 public:
  Recomputed(const Graph& graph, const plan::Recompute& plan, std::vector<int> parts)
      : graph_(graph), plan_(plan), region_(regions_of(graph, plan)), part_(std::move(parts)) {
    find_kept();
    find_named();
  }

  Graph run() {
    std::vector<bool> recomputed(graph_.values.size());
    for (size_t v = 0; v < recomputed.size(); ++v) {
      recomputed[v] = is_recomputed({static_cast<int32_t>(v)});
    }
    auto repeated = repeat(graph_, recomputed);
    copied_ = std::move(repeated.copied);
    return std::move(repeated.graph);
  }

  // After run().
  std::vector<RegionCost> costs() const {
    std::vector<RegionCost> costs(plan_.regions.size());
    const int both = static_cast<int>(costs.size());
    std::vector<int> kept(graph_.values.size(), -1);  // by root: the one region whose copies
                                                      // read it, `both` for several
    std::vector<bool> read(graph_.values.size());     // by root: by the backward pass
    std::vector<bool> needed(graph_.values.size());   // by root: as a value that is kept
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const auto& node = graph_.nodes[n];
      const bool copied = copied_[n];
      if (copied) costs[region_[n]].flops += graph::flops_of(graph_, node);
      node.each_operand([&](ValueId v) {
        const auto root = this->root(v).index;
        if (node.phase == Phase::backward) {
          read[root] = true;
          needed[root] = needed[root] || !is_recomputed(v);
        } else if (copied && !is_recomputed(v) && graph_.values[root].producer >= 0) {
          kept[root] = kept[root] < 0 || kept[root] == region_[n] ? region_[n] : both;
        }
      });
    }
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      const auto producer = graph_.values[v].producer;
      const auto bytes = graph_.values[v].type.bytes();
      if (producer < 0 || graph_.nodes[producer].phase != Phase::forward) continue;
      if (read[v] && !needed[v] && kept[v] < 0) costs[region_[producer]].bytes += bytes;
      if (!read[v] && kept[v] >= 0 && kept[v] < both) costs[kept[v]].bytes -= bytes;
    }
    return costs;
  }

 private:
  // Returns the base of a view.
  ValueId root(ValueId v) const {
    while (graph_.values[v.index].producer >= 0) {
      const auto& node = graph_.nodes[graph_.values[v.index].producer];
      if (!shows_operand(node.op)) break;
      ValueId first;
      node.each_operand([&](ValueId operand) {
        if (!first.defined()) first = operand;
      });
      if (!first.defined()) break;
      v = first;
    }
    return v;
  }

  // Finds results that are kept in any case: those that the forward pass reads outside of their
  // region, those of buffers that have other values when they would be computed again, and outputs
  // of the graph.
  void find_kept() {
    kept_.assign(graph_.values.size(), false);
    std::vector<bool> written(graph_.values.size());
    for (const auto& input : graph_.inputs) {
      written[input.value.index] = input.kind == graph::Input::Kind::buffer &&
                                   !graph_.is_fixed(input);
    }
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (graph_.nodes[n].phase != Phase::forward) continue;
      const bool reads_buffers = !shows_operand(graph_.nodes[n].op) &&
                                 !trains_norm(graph_.nodes[n]);
      graph_.nodes[n].each_operand([&](ValueId v) {
        if (reads_buffers && written[root(v).index]) {
          for (const auto result : graph_.nodes[n].outputs) {
            if (result.defined()) kept_[result.index] = true;
          }
        }
        const auto producer = graph_.values[v.index].producer;
        if (producer < 0) return;
        if (region_[producer] != region_[n] || crosses_parts(producer, n)) kept_[v.index] = true;
      });
    }
    for (const auto& output : graph_.outputs) {
      if (output.value.defined()) kept_[output.value.index] = true;
    }
  }

  // Returns whether a value is sent from one part of a pipeline to another. Ops that each part
  // computes for itself send nothing.
  bool crosses_parts(size_t producer, size_t user) const {
    if (part_.empty() || part_[producer] == plan::kEveryPart) return false;
    return part_[producer] != part_[user] && part_[user] != plan::kEveryPart;
  }

  // Returns the ops of a region whose results are kept by name.
  const std::vector<std::string>& keep_of(int region) const {
    if (plan_.keep_in.empty() || region < 0) return plan_.keep;
    const auto& scopes = plan_.regions[static_cast<size_t>(region)];
    const auto own = scopes.empty() ? plan_.keep_in.end() : plan_.keep_in.find(scopes.front());
    return own == plan_.keep_in.end() ? plan_.keep : own->second;
  }

  // Returns whether ranks get more from a collective than they give. All ranks give one answer, also
  // where their parts have unequal sizes: they run the same collectives again.
  bool grows(const Node& node) const {
    if (node.outputs.empty() || !node.outputs[0].defined() || node.op == "comm::all_gather")
      return true;
    if (node.op != "comm::exchange") return false;
    int64_t given = 0;
    node.each_operand([&](ValueId v) { given = std::max(given, graph_.type(v).bytes()); });
    return graph_.type(node.outputs[0]).bytes() > given;
  }

  // Finds the results of ops that are kept by name. Where a collective directly reads such a
  // result, the collective's result is kept instead, unless it is larger: a sum is kept, not
  // its terms.
  void find_named() {
    named_.assign(graph_.nodes.size(), false);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const auto& node = graph_.nodes[n];
      if (node.phase != Phase::forward) continue;
      const auto& keep = keep_of(region_[n]);
      // A product may add its bias (fuse/fuse_bias.h).
      named_[n] = is_listed(keep, node.op) ||
                  (node.op == "aten::addmm" && is_listed(keep, "aten::mm"));
      if (!graph::is_collective(node.op) || keep.empty() || grows(node)) continue;
      node.each_operand([&](ValueId v) {
        const auto producer = graph_.values[root(v).index].producer;
        named_[n] = named_[n] || (producer >= 0 && named_[producer]);
      });
    }
  }

  bool is_recomputed(ValueId v) const {
    const auto producer = graph_.values[v.index].producer;
    return producer >= 0 && region_[producer] >= 0 && !kept_[v.index] && !named_[producer] &&
           is_repeated(plan_, graph_.nodes[producer].op);
  }

  const Graph& graph_;
  const plan::Recompute& plan_;
  std::vector<int> region_;   // by node
  std::vector<int> part_;     // by node, with a pipeline
  std::vector<bool> copied_;  // by node
  std::vector<bool> kept_;    // by value
  std::vector<bool> named_;   // by node
};

}  // namespace

Graph recompute(const Graph& local, const plan::Recompute& plan, std::vector<int> parts) {
  if (plan.regions.empty()) return local;
  return Recomputed(local, plan, std::move(parts)).run();
}

std::vector<RegionCost> recompute_costs(const Graph& local, const plan::Recompute& plan) {
  Recomputed recomputed(local, plan, {});
  recomputed.run();
  return recomputed.costs();
}

}  // namespace perigee::compile
