// How a value depends on the samples of a batch, as classify_loss follows it from op to op.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "shard/loss/loss_ops.h"
#include "shard/loss/sample_dim.h"
#include "shard/rules/rule.h"

namespace perigee::shard {

enum class Degree {
  none,    // does not depend on samples
  mean,    // unchanged when the samples are doubled
  sum,     // doubled when the samples are doubled
  total,   // another function of one sum, a number of data: only divides, by that of the whole step
  sample,  // has a dim over samples
  pool,    // samples gathered in other positions: an expert's queue
  mixed,   // neither
};

struct State {
  Degree degree = Degree::none;
  SampleDim at = {};     // sample: the dim
  bool share = false;    // sample: divided by a sum over the samples, so that their sum is a mean
  std::string coupling;  // op and scope that first couple samples; "": none
  std::string ended;     // mixed, total: op and scope where the proof ended, or would end, and why

  bool is(Degree d) const { return degree == d; }
};

inline std::string describe(const graph::Node& node) {
  return fmt::format("{} in scope \"{}\"", node.op, node.scope);
}

// Returns the state after an op at which the proof ends.
inline State end_at(const graph::Node& node, std::string_view why) {
  State state;
  state.degree = Degree::mixed;
  state.ended = fmt::format("{}, {}", describe(node), why);
  return state;
}

// Returns whether the op is jointly linear in the operands of a kind, and they are all that depend on
// samples in such a way. `pattern`: of its sharding rule; nothing: it has none.
template <class F>
bool is_linear(const graph::Node& node, const std::optional<Pattern>& pattern,
               const std::vector<const State*>& operands, F of_kind) {
  const bool shares = std::ranges::any_of(operands, [](const State* s) { return s->share; });
  if (node.op == "perigee::reshape" || node.op == "perigee::expand" || node.op == "perigee::cast" ||
      is_mean(node)) {
    return true;
  }
  if (!pattern) return false;
  for (const auto& group : pattern->linear) {
    bool good = true;
    for (size_t i = 0; i < operands.size(); ++i) {
      const bool in = std::ranges::count(group, static_cast<int>(i)) > 0;
      // A share times a sample is a share.
      good &= in ? of_kind(*operands[i])
                 : !of_kind(*operands[i]) && (shares || operands[i]->is(Degree::none));
    }
    if (good) return true;
  }
  return false;
}

}  // namespace perigee::shard
