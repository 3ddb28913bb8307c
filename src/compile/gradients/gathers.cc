// The start of all-gathers of units that are stored in parts.
#include "compile/gradients/gathers.h"

#include <algorithm>
#include <map>

#include "compile/draft/lower.h"
#include "compile/gradients/reductions.h"

namespace perigee::compile {

using graph::NodeId;
using graph::Phase;

namespace {

// The nodes that one all-gather serves.
struct Use {
  int32_t flat = -1;
  Phase phase = Phase::forward;
  NodeId first = 0, last = 0;
};

// Returns the uses in the order of their first nodes. Views of a weight count as the weight.
std::vector<Use> find_uses(const graph::Graph& local, const std::vector<plan::FlatUnit>& flats) {
  std::vector<int32_t> flat_of(local.values.size(), -1);
  for (size_t f = 0; f < flats.size(); ++f) {
    if (!flats[f].in_parts) continue;
    for (const auto& member : flats[f].members) {
      if (const auto* input = local.find_input(member.name)) {
        flat_of[input->value.index] = static_cast<int32_t>(f);
      }
    }
  }
  std::map<std::pair<int32_t, Phase>, Use> uses;
  const auto use = [&](graph::ValueId v, Phase phase, NodeId at) {
    const auto f = flat_of[v.index];
    if (f < 0) return;
    if (flats[f].gathered_once || !flats[f].unit->reshard_after_forward) phase = Phase::forward;
    const auto [entry, added] = uses.try_emplace({f, phase}, Use{f, phase, at, at});
    entry->second.last = at;
  };
  for (size_t n = 0; n < local.nodes.size(); ++n) {
    const auto& node = local.nodes[n];
    const bool shows = shows_operand(node.op) || node.find("part");
    const bool reads = !shows_operand(node.op) || may_copy(node.op);
    int32_t shown = -1;
    node.each_operand([&](graph::ValueId v) {
      if (reads) use(v, node.phase, static_cast<NodeId>(n));
      if (shows && shown < 0) shown = flat_of[v.index];
    });
    for (auto v : node.outputs) {
      if (v.defined()) flat_of[v.index] = shown;
    }
  }
  for (const auto& output : local.outputs) {
    if (output.value.defined()) use(output.value, Phase::forward, Reductions::kEnd);
  }
  std::vector<Use> list;
  for (const auto& [key, found] : uses) list.push_back(found);
  std::stable_sort(list.begin(), list.end(),
                   [](const Use& a, const Use& b) { return a.first < b.first; });
  return list;
}

int section_of(const Stage& stage, NodeId node) {
  return node == Reductions::kEnd ? -1 : stage.section[node];
}

// Returns the node before which weights that all microbatches read are gathered: the start of the
// section before the one that uses them, so that the first microbatch does not wait on each stage
// in sequence. Their memory is held for the whole step in any case.
NodeId earliest(NodeId use, const Stage* stage) {
  if (!stage) return 0;
  const int section = std::max(0, section_of(*stage, use) - 1);
  const auto first = std::lower_bound(stage->section.begin(), stage->section.end(), section);
  return static_cast<NodeId>(first - stage->section.begin());
}

}  // namespace

std::vector<Gather> place_gathers(const graph::Graph& local, const plan::Plan& plan,
                                  const std::vector<plan::FlatUnit>& flats, const Stage* stage) {
  const bool any = std::any_of(flats.begin(), flats.end(),
                               [](const plan::FlatUnit& flat) { return flat.in_parts; });
  if (!any) return {};
  const auto& communication = plan.communication;
  const auto uses = find_uses(local, flats);
  const auto bytes_of = [&](const Use& use) {
    const auto& flat = flats[use.flat];
    const auto dtype = local.type(local.find_input(flat.members[0].name)->value).dtype;
    return flat.parts * flat.part * static_cast<int64_t>(graph::size_of(dtype));
  };
  std::vector<Gather> gathers;
  for (size_t u = 0; u < uses.size(); ++u) {
    const auto& use = uses[u];
    // Prefetch by that many units, limited by prefetch_bytes, and not while the unit's preceding
    // use still holds it.
    const int64_t depth = use.phase == Phase::forward ? communication.prefetch_forward
                                                      : communication.prefetch_backward;
    NodeId before = use.first;
    int64_t bytes = bytes_of(use), units = 0;
    // A unit's flat tensors, of several types or cuts, are used together and count as one.
    std::pair last{flats[use.flat].unit, use.phase};
    for (size_t k = depth > 0 ? u : 0; k-- > 0;) {
      const auto& earlier = uses[k];
      const std::pair unit{flats[earlier.flat].unit, earlier.phase};
      if (unit != last && ++units > depth) break;
      if (communication.prefetch_bytes > 0 && bytes > communication.prefetch_bytes) break;
      if (earlier.flat == use.flat) break;
      if (stage && section_of(*stage, earlier.first) != section_of(*stage, use.first)) break;
      before = earlier.first;
      bytes += bytes_of(earlier);
      last = unit;
    }
    for (const auto& other : uses) {
      if (&other != &use && other.flat == use.flat && other.last < use.first) {
        before = std::max(before, other.last + 1);
      }
    }
    if (flats[use.flat].gathered_once && depth > 0 && use.first != Reductions::kEnd) {
      before = earliest(use.first, stage);
    }
    gathers.push_back({use.flat, use.phase, before});
  }
  std::stable_sort(gathers.begin(), gathers.end(),
                   [](const Gather& a, const Gather& b) { return a.before < b.before; });
  return gathers;
}

}  // namespace perigee::compile
