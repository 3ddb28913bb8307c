// Attention: batch and heads are free; the key sequence stays whole, the query sequence too where
// the mask is causal.
#include "shard/families.h"

namespace perigee::shard {
namespace {

struct Letters {
  int b, h, s;
};

// Grouped queries: shard i of the query heads needs shard i of the key heads, so both split evenly.
// One key head for all query heads stays whole.
std::optional<Pattern> attention(const Call& call, Role role) {
  const int query = call.find("query"), key = call.find("key"), value = call.find("value");
  if (query < 0 || key < 0 || value < 0 || call.rank(query) != 4) return {};
  const int64_t heads = call.shape(query)[1], groups = call.shape(key)[1];
  auto pattern = whole_pattern(call);
  const Letters at = {pattern.add(role), pattern.add(role, heads != groups && groups != 1),
                      call.node().get<bool>("causal", false) ? -1 : pattern.add(role)};
  const int kv_heads = groups == 1 && heads != 1 ? -1 : at.h;
  for (int i = 0; i < call.operand_count(); ++i) {
    const auto& name = call.argument_of(i);
    if (name == "key" || name == "value") {
      pattern.operands[i] = {at.b, kv_heads, -1, -1};
    } else if (name == "logsumexp") {
      pattern.operands[i] = {at.b, at.h, at.s};
    } else if (name == "bias") {
      const auto& shape = call.shape(i);
      const auto& whole = call.shape(query);
      std::vector<int> letters;
      for (size_t d = 0; d < shape.size(); ++d) {
        const size_t from_right = shape.size() - d;
        const int letter = from_right == 4   ? at.b
                           : from_right == 3 ? at.h
                           : from_right == 2 ? at.s
                                             : -1;
        const bool broadcast = from_right > 1 && shape[d] != whole[4 - from_right];
        letters.push_back(broadcast ? -1 : letter);
      }
      pattern.operands[i] = letters;
    } else {  // query, grad, output
      pattern.operands[i] = {at.b, at.h, at.s, -1};
    }
  }
  if (call.node().op == "perigee::attention") {
    pattern.results = {{at.b, at.h, at.s, -1}, {at.b, at.h, at.s}};
    return pattern;
  }
  pattern.results = {pattern.operands[query], pattern.operands[key], pattern.operands[value]};
  if (call.result_count() > 3) {
    const int bias = call.find("bias");
    pattern.results.push_back(call.has_result(3) ? pattern.operands[bias] : std::vector<int>());
  }
  pattern.linear = {{call.find("grad")}};
  return pattern;
}

}  // namespace

void add_attention_rules(Rules& rules) {
  const auto forward = [](const Call& call) { return attention(call, Role::free); };
  const auto backward = [](const Call& call) { return attention(call, Role::sum); };
  rules.add("perigee::attention", {forward, lower_random});
  rules.add("perigee::attention_backward", {backward, lower_random});
}

}  // namespace perigee::shard
