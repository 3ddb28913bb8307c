// A mixture of experts (graph/ops.h). Sharded tokens, whole experts: queues are Partial sums.
// Sharded experts, whole tokens: every rank has the queues of its experts. Both sharded on one
// axis: ranks exchange the rows routed to each other's experts.
#include <algorithm>

#include "base/fail.h"
#include "shard/rules/emitter.h"
#include "shard/rules/families.h"

namespace perigee::shard {
namespace {

using graph::DType;
using graph::TensorType;
using graph::ValueId;
using mesh::Placements;
using Values = std::vector<ValueId>;

// ---- patterns

// expert [g, t, k] -> slot [g, t, k], counts [g, e]
std::optional<Pattern> expert_slots(const Call& call) {
  auto pattern = whole_pattern(call);
  const int g = pattern.add(), t = pattern.add(Role::agreed);
  pattern.dims[t].one_piece = true;  // queue positions follow the order of tokens
  pattern.operands[0] = {g, t, -1};
  if (call.has_result(0)) pattern.results[0] = {g, t, -1};
  if (call.has_result(1)) pattern.results[1] = {g, -1};
  return pattern;
}

// source [g, t, k, w], slot [g, t, k] -> queue [e, g, c, w]
std::optional<Pattern> dispatch(const Call& call) {
  auto pattern = whole_pattern(call);
  const int g = pattern.add(), t = pattern.add(Role::sum), w = pattern.add(), e = pattern.add();
  pattern.dims[e].one_piece = true;
  pattern.operands = {{g, t, -1, w}, {g, t, -1}};
  pattern.results = {{e, g, -1, w}};
  pattern.linear = {{0}};
  pattern.sizes = {{.name = "experts", .of_result = true, .tensor = 0, .dim = 0}};
  for (int dim : {1, 0}) {
    pattern.communicating.push_back(
        {.operands = {dim, dim}, .results = {0}, .moves = {{false, 0}}});
  }
  return pattern;
}

// queue [e, g, c, w], slot [g, t, k] -> [g, t, k, w]
std::optional<Pattern> combine(const Call& call) {
  auto pattern = whole_pattern(call);
  const int g = pattern.add(), t = pattern.add(), w = pattern.add(), e = pattern.add(Role::sum);
  pattern.dims[e].one_piece = true;
  pattern.operands = {{e, g, -1, w}, {g, t, -1}};
  pattern.results = {{g, t, -1, w}};
  pattern.linear = {{0}};
  for (int dim : {1, 0}) {
    pattern.communicating.push_back({.operands = {0, dim}, .results = {dim}, .moves = {{true, 0}}});
  }
  return pattern;
}

// ---- lowerings

Values lower_slots(RuleLowering& lowering) {
  const auto axes = lowering.axes_of(0, 1);
  if (axes.empty()) return lowering.emit(lowering.local_args());
  const auto expert = lowering.operands[0];
  const auto groups = lowering.type(expert).shape[0];
  const auto experts = lowering.call.node().get<int64_t>("experts", 0);
  // The preceding ranks of the group hold the preceding tokens.
  int64_t ranks = 1;
  for (const auto& axis : mesh::AxisSet::parse(axes)) ranks *= lowering.mesh.size_of(axis);
  const auto group = mesh::group_of(lowering.mesh, mesh::AxisSet::parse(axes), lowering.rank);
  const auto index = std::find(group.begin(), group.end(), lowering.rank) - group.begin();
  const auto own = lowering.emit("perigee::expert_counts", {{"expert", expert}},
                                 {DType::int64, {1, groups, experts}});
  const auto all = lowering.emit("comm::all_gather",
                                 {{"self", own}, {"axis", axes}, {"dim", int64_t{0}}},
                                 {DType::int64, {ranks, groups, experts}});
  auto args = lowering.local_args();
  args.emplace_back("before", all);
  args.emplace_back("index", static_cast<int64_t>(index));
  return lowering.emit(std::move(args));
}

// Exchanges rows among the ranks of axes that shard both tokens and experts. Tokens are [g, t, k]
// or [g, t, k, w], queues [e, g, c, w].
class Exchange {
 public:
  Exchange(RuleLowering& lowering, const Placements& tokens,
           const std::vector<int64_t>& token_shape, const Placements& queue,
           const std::vector<int64_t>& queue_shape, ValueId slot)
      : lowering_(lowering) {
    const auto& mesh = lowering.mesh;
    for (size_t a = 0; a < tokens.size(); ++a) {
      if (!tokens[a].is_shard() || tokens[a].dim > 1) continue;
      if (!queue[a].is_shard() || queue[a].dim != 0) continue;
      axes_ += (axes_.empty() ? "" : ",") + mesh.axes[a].name;
    }
    if (axes_.empty()) return;
    const auto group = mesh::group_of(mesh, mesh::AxisSet::parse(axes_), lowering.rank);
    ranks_ = static_cast<int64_t>(group.size());
    position_ = std::find(group.begin(), group.end(), lowering.rank) - group.begin();
    std::vector<int64_t> owners;
    for (auto rank : group) {
      owners.push_back(mesh::local_ranges(queue_shape, queue, mesh, rank)[0].begin);
    }
    const auto held = mesh::local_ranges(queue_shape, queue, mesh, lowering.rank);
    // The rows of a group may be cut into several pieces.
    auto groups = tokens;
    for (auto& placement : groups) {
      if (placement.is_shard() && placement.dim != 0) placement = mesh::Placement::replicate();
    }
    const auto own = mesh::local_ranges(token_shape, groups, mesh, lowering.rank)[0];
    const auto first = own.begin - held[1].begin;
    if (first < 0 || first + own.length > held[1].length) {
      fail("shard",
           "tokens of groups {} and following must go to queues that hold them, but they "
           "hold those from {} on",
           own.begin, held[1].begin);
    }
    const auto& local = lowering.type(slot).shape;
    rows_ = local[0] * local[1] * local[2];
    queue_rows_ = held[0].length * held[1].length * queue_shape[2];
    route({{"slot", slot},
           {"places", queue_shape[2]},
           {"owners", owners},
           {"held", held[0].length},
           {"group", first},
           {"groups", held[1].length}},
          fmt::format("{} {} {}", slot.index, axes_, fmt::join(owners, ",")));
  }

  bool communicates() const { return !axes_.empty(); }

  // Sends rows of tokens to their experts' queue positions; makes a queue of this type.
  ValueId to_experts(ValueId source, const TensorType& queue) {
    const auto width = queue.shape.back();
    const auto sent = take(source, order_, rows_, width, false);
    return put(exchange(sent, received(), false), target_, queue, true);
  }

  // The reverse: makes rows of tokens of this type.
  ValueId to_tokens(ValueId queue, const TensorType& tokens) {
    const auto width = tokens.shape.back();
    const auto sent = take(queue, target_, received(), width, true);
    return put(exchange(sent, rows_, true), order_, tokens, false);
  }

 private:
  // The most rows that can arrive: all rows of the group, or all queue positions.
  int64_t received() const { return std::min(rows_ * ranks_, queue_rows_); }

  // The routing does not depend on the rows' contents: it is computed once and shared.
  void route(Args args, const std::string& key) {
    auto& shared = lowering_.shared;
    if (!shared.contains("order " + key)) {
      const TensorType list{DType::int64, {rows_}};
      const auto made = lowering_.emit(
          "perigee::route", std::move(args),
          std::vector<TensorType>{list, list, {DType::int64, {ranks_}}});
      const auto counts = lowering_.emit("comm::all_gather",
                                         {{"self", made[2]}, {"axis", axes_}, {"dim", int64_t{0}}},
                                         {DType::int64, {ranks_ * ranks_}});
      Emitter emit(lowering_);
      shared["order " + key] = made[0];
      counts_ = shared["counts " + key] = emit.reshape(counts, {ranks_, ranks_});
      shared["target " + key] = exchange(made[1], received(), false);
    }
    order_ = shared["order " + key];
    counts_ = shared["counts " + key];
    target_ = shared["target " + key];
  }

  ValueId exchange(ValueId rows, int64_t most, bool back) {
    auto type = lowering_.type(rows);
    type.shape[0] = most;
    return lowering_.emit("comm::exchange",
                          {{"self", rows}, {"counts", counts_}, {"axis", axes_}, {"back", back}},
                          std::move(type));
  }

  ValueId take(ValueId self, ValueId index, int64_t rows, int64_t width, bool back) {
    return lowering_.emit("perigee::take_rows",
                          {{"self", self},
                           {"index", index},
                           {"counts", counts_},
                           {"position", position_},
                           {"back", back}},
                          {lowering_.type(self).dtype, {rows, width}});
  }

  ValueId put(ValueId rows, ValueId index, TensorType type, bool back) {
    return lowering_.emit("perigee::put_rows",
                          {{"rows", rows},
                           {"index", index},
                           {"counts", counts_},
                           {"position", position_},
                           {"back", back}},
                          std::move(type));
  }

  RuleLowering& lowering_;
  ValueId order_, target_, counts_;
  std::string axes_;
  int64_t ranks_ = 1, position_ = 0, rows_ = 0, queue_rows_ = 0;
};

Values lower_dispatch(RuleLowering& lowering) {
  const auto& call = lowering.call;
  const auto& queue = lowering.result_placements[0];
  Exchange exchange(lowering, lowering.operand_placements[0], call.shape(0), queue,
                    call.result_shape(0), lowering.operands[1]);
  if (exchange.communicates()) {
    return {exchange.to_experts(lowering.operands[0], lowering.local_types()[0])};
  }
  auto args = lowering.local_args();
  const auto held = lowering.result_range(0, 0);
  if (held.begin > 0) args.emplace_back("first", held.begin);
  return lowering.emit(std::move(args));
}

Values lower_combine(RuleLowering& lowering) {
  const auto& call = lowering.call;
  Exchange exchange(lowering, lowering.result_placements[0], call.result_shape(0),
                    lowering.operand_placements[0], call.shape(0), lowering.operands[1]);
  if (exchange.communicates()) {
    return {exchange.to_tokens(lowering.operands[0], lowering.local_types()[0])};
  }
  auto args = lowering.local_args();
  const auto held = lowering.operand_range(0, 0);
  if (held.begin > 0) args.emplace_back("first", held.begin);
  return lowering.emit(std::move(args));
}

}  // namespace

void add_expert_rules(Rules& rules) {
  rules.add("perigee::expert_slots", {expert_slots, lower_slots});
  rules.add("perigee::dispatch", {dispatch, lower_dispatch});
  rules.add("perigee::combine", {combine, lower_combine});
  add_text_rules(rules, {
                            {"perigee::grouped_mm",
                             "self: e g c^ w+, mat2: e w+ h, counts: g e -> e g c^ h; linear(self) "
                             "linear(mat2)"},
                            {"perigee::grouped_outer",
                             "self: e g+ c^ w, grad: e g+ c^ h, counts: g+ e -> e w h; "
                             "linear(self) linear(grad)"},
                        });
}

}  // namespace perigee::shard
