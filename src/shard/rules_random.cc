// Ops that draw random numbers by the element's index in the whole tensor: a shard tells which
// block of it it is.
#include "shard/families.h"

namespace perigee::shard {
namespace {

// Any block can be drawn alone, but no runs.
std::optional<Pattern> drawn(const Call& call) {
  auto pattern = whole_pattern(call);
  for (auto& letter : pattern.results[0]) letter = pattern.add();
  for (auto& dim : pattern.dims) dim.one_piece = call.node().op == "perigee::random";
  return pattern;
}

}  // namespace

void add_block(const Lowering& lowering, Args& args) {
  const auto& call = lowering.call;
  std::vector<int64_t> whole = call.result_shape(0);
  const mesh::Placements* placements = &lowering.result_placements[0];
  if (call.node().op.starts_with("perigee::attention")) {
    // The mask is [b, h, s, t], sharded as the query's first three dims.
    if (call.node().get<double>("p", 0.0) == 0.0) return;
    const int query = call.find("query");
    whole = call.shape(query);
    whole[3] = call.shape(call.find("key"))[2];
    placements = &lowering.operand_placements[query];
  }
  bool block = false;
  for (const auto& placement : *placements) block |= placement.is_shard();
  if (!block) return;
  std::vector<int64_t> begin;
  for (const auto& range : mesh::local_ranges(whole, *placements, lowering.mesh, lowering.rank)) {
    begin.push_back(range.begin);
  }
  args.emplace_back("global", whole);
  args.emplace_back("begin", begin);
}

std::vector<graph::ValueId> lower_random(Lowering& lowering) {
  auto args = lowering.local_args();
  add_block(lowering, args);
  return lowering.emit(std::move(args));
}

void add_random_rules(Rules& rules) {
  rules.add("perigee::full", {drawn});
  rules.add("perigee::random", {drawn, lower_random});
}

}  // namespace perigee::shard
