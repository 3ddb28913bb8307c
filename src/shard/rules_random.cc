// Ops that draw random numbers by the element's index in the whole tensor: a shard tells which
// block of it it is.
#include "shard/families.h"

namespace perigee::shard {
namespace {

// Any block can be drawn alone.
std::optional<Pattern> drawn(const Call& call) {
  auto pattern = whole_pattern(call);
  for (auto& letter : pattern.results[0]) letter = pattern.add();
  return pattern;
}

}  // namespace

std::vector<graph::ValueId> lower_random(Lowering& lowering) {
  const auto& call = lowering.call;
  auto args = lowering.local_args();
  std::vector<int64_t> whole = call.result_shape(0);
  const mesh::Placements* placements = &lowering.result_placements[0];
  const bool attention = call.node().op.starts_with("perigee::attention");
  if (attention) {
    // The mask is [b, h, s, t], sharded as the query's first three dims.
    if (call.node().get<double>("p", 0.0) == 0.0) return lowering.emit(std::move(args));
    const int query = call.find("query");
    whole = call.shape(query);
    whole[3] = call.shape(call.find("key"))[2];
    placements = &lowering.operand_placements[query];
  }
  const auto ranges = mesh::local_ranges(whole, *placements, lowering.mesh, lowering.rank);
  bool block = false;
  for (const auto& placement : *placements) block |= placement.is_shard();
  if (block) {
    std::vector<int64_t> begin;
    for (const auto& range : ranges) begin.push_back(range.begin);
    args.emplace_back("global", whole);
    args.emplace_back("begin", begin);
  }
  return lowering.emit(std::move(args));
}

void add_random_rules(Rules& rules) {
  rules.add("perigee::full", {drawn});
  rules.add("perigee::random", {drawn, lower_random});
}

}  // namespace perigee::shard
