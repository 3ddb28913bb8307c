// Ops that draw random numbers by the element's index in the whole tensor: a shard tells which
// block of it it is, or draws block by block.
#include <algorithm>

#include "shard/emitter.h"
#include "shard/families.h"

namespace perigee::shard {
namespace {

// Any block can be drawn alone, or two of them, but no runs.
std::optional<Pattern> drawn(const Call& call) {
  auto pattern = whole_pattern(call);
  for (auto& letter : pattern.results[0]) letter = pattern.add();
  for (auto& dim : pattern.dims) {
    dim.one_piece = call.node().op == "perigee::random";
    dim.zigzag = true;
  }
  return pattern;
}

}  // namespace

std::vector<graph::ValueId> lower_random(Lowering& lowering) {
  const auto& placements = lowering.result_placements[0];
  const bool sharded =
      std::any_of(placements.begin(), placements.end(), [](const auto& p) { return p.is_shard(); });
  if (!sharded) return lowering.emit(lowering.local_args());
  const auto whole = lowering.call.result_shape(0);
  std::vector<int64_t> begin;
  std::vector<mesh::Range> pieces;  // of the dim that has several
  size_t cut = 0;
  for (size_t d = 0; d < whole.size(); ++d) {
    auto held = lowering.result_pieces(0, static_cast<int>(d));
    begin.push_back(held[0].begin);
    if (held.size() == 1) continue;
    cut = d;
    pieces = std::move(held);
  }
  const auto block = [&](Args args) {
    args.emplace_back("global", whole);
    args.emplace_back("begin", begin);
    return args;
  };
  if (pieces.empty()) return lowering.emit(block(lowering.local_args()));
  Emitter emit(lowering);
  std::vector<graph::ValueId> parts;
  int64_t first = 0;
  for (const auto& piece : pieces) {
    auto args = lowering.local_args();
    for (auto& [name, arg] : args) {
      auto* v = std::get_if<graph::ValueId>(&arg);
      if (v && v->defined()) *v = emit.slice(*v, static_cast<int64_t>(cut), {first, piece.length});
    }
    auto type = lowering.local_types()[0];
    type.shape[cut] = piece.length;
    begin[cut] = piece.begin;
    parts.push_back(lowering.emit(lowering.call.node().op, block(std::move(args)), type));
    first += piece.length;
  }
  return {emit.cat(parts, static_cast<int64_t>(cut))};
}

void add_random_rules(Rules& rules) {
  rules.add("perigee::full", {drawn});
  rules.add("perigee::random", {drawn, lower_random});
}

}  // namespace perigee::shard
