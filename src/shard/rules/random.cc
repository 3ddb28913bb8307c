// Ops that draw random numbers by the element's index in the whole tensor: a shard passes its block
// of the indices, or draws block by block.
#include <algorithm>

#include "shard/rules/emitter.h"
#include "shard/rules/families.h"

namespace perigee::shard {
namespace {

// A view in which dims cut in runs are two dims [runs, run]: elements keep their indices, and no
// placement has runs.
struct RunView {
  std::vector<int64_t> shape;
  mesh::Placements placements;
};

RunView view_of_runs(const std::vector<int64_t>& shape, const mesh::Placements& placements) {
  std::vector<int64_t> runs(shape.size(), 0);
  for (const auto& p : placements) {
    if (p.is_shard() && p.run != 0) runs[p.dim] = p.run;
  }
  RunView view{{}, placements};
  std::vector<int> first;  // per dim: its position in the view
  for (size_t d = 0; d < shape.size(); ++d) {
    first.push_back(static_cast<int>(view.shape.size()));
    view.shape.push_back(runs[d] == 0 ? shape[d] : shape[d] / runs[d]);
    if (runs[d] != 0) view.shape.push_back(runs[d]);
  }
  for (auto& p : view.placements) {
    if (!p.is_shard()) continue;
    p.dim = first[p.dim] + (p.run == 0 ? 0 : 1);
    p.run = 0;
  }
  return view;
}

std::optional<Pattern> drawn(const Call& call) {
  auto pattern = whole_pattern(call);
  for (auto& letter : pattern.results[0]) letter = pattern.add();
  return pattern;
}

}  // namespace

std::vector<graph::ValueId> lower_random(RuleLowering& lowering) {
  const auto& placements = lowering.result_placements[0];
  const bool sharded = std::any_of(placements.begin(), placements.end(),
                                   [](const auto& p) { return p.is_shard(); });
  if (!sharded) return lowering.emit(lowering.local_args());
  const auto [whole, cuts] = view_of_runs(lowering.call.result_shape(0), placements);
  auto type = lowering.local_types()[0];
  const auto shape = type.shape;
  type.shape = mesh::local_shape(whole, cuts, lowering.mesh, lowering.rank);
  std::vector<int64_t> begin;
  std::vector<mesh::Range> pieces;  // of the dim that has several
  size_t cut = 0;
  for (size_t d = 0; d < whole.size(); ++d) {
    auto held = mesh::local_pieces(whole, cuts, lowering.mesh, lowering.rank, static_cast<int>(d));
    begin.push_back(held[0].begin);
    if (held.size() == 1) continue;
    cut = d;
    pieces = std::move(held);
  }
  if (pieces.empty()) pieces = {{begin[cut], type.shape[cut]}};
  Emitter emit(lowering);
  auto args = lowering.local_args();
  const auto change = [](Args& args, const auto& make) {
    for (auto& [name, arg] : args) {
      auto* v = std::get_if<graph::ValueId>(&arg);
      if (v && v->defined()) *v = make(*v);
    }
  };
  if (type.shape != shape) change(args, [&](auto v) { return emit.reshape(v, type.shape); });
  std::vector<graph::ValueId> parts;
  int64_t first = 0;
  for (const auto& piece : pieces) {
    auto block = args;
    change(block, [&](auto v) {
      return emit.slice(v, static_cast<int64_t>(cut), {first, piece.length});
    });
    begin[cut] = piece.begin;
    block.emplace_back("global", whole);
    block.emplace_back("begin", begin);
    type.shape[cut] = piece.length;
    parts.push_back(lowering.emit(lowering.call.node().op, std::move(block), type));
    first += piece.length;
  }
  const auto drawn = emit.cat(parts, static_cast<int64_t>(cut));
  return {emit.type(drawn).shape == shape ? drawn : emit.reshape(drawn, shape)};
}

void add_random_rules(Rules& rules) {
  rules.add("perigee::full", {drawn});
  rules.add("perigee::random", {drawn, lower_random});
}

}  // namespace perigee::shard
