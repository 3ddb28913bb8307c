// Attention: batch, heads and the query sequence are free. The key sequence is not sharded, or is
// sharded with that of the queries; keys and values then visit all ranks.
#include "shard/rules/families.h"

namespace perigee::shard {
namespace {

struct Letters {
  int b, h, s;
};

bool is_causal(const Call& call) { return call.node().get<bool>("causal", false); }

// With sharded rows a causal mask is added to the bias, and the gradient of a bias that broadcasts
// over rows or keys would have another shape.
bool may_shard_queries(const Call& call) {
  const int bias = call.find("bias");
  if (!is_causal(call) || bias < 0 || !call.node().get<bool>("bias_grad", false)) return true;
  const auto& shape = call.shape(bias);
  return shape.size() >= 2 && shape[shape.size() - 2] == call.shape(call.find("query"))[2] &&
         shape.back() == call.shape(call.find("key"))[2];
}

// Queries and keys sharded on their sequence, with a causal mask only if both are cut identically.
// A bias is sharded on its queries' rows; one that broadcasts over rows or keys must have no
// gradient, which would be a sum over ranks. Document numbers are sharded as their tokens.
std::optional<CommunicatingRule> ring(const Call& call) {
  const int query = call.find("query"), key = call.find("key"), bias = call.find("bias");
  if (is_causal(call) && call.shape(query)[2] != call.shape(key)[2]) return {};
  constexpr int sequence = 2;  // of [b, h, s, d] and of [b, h, s]
  int rows = -1;               // of the bias
  if (bias >= 0) {
    const auto& shape = call.shape(bias);
    if (shape.size() < 2) return {};
    const size_t dim = shape.size() - 2;
    if (shape[dim] == call.shape(query)[sequence]) rows = static_cast<int>(dim);
    const bool broadcasts = rows < 0 || shape.back() != call.shape(key)[sequence];
    if (broadcasts && call.node().get<bool>("bias_grad", false)) return {};
  }
  CommunicatingRule crossing;
  crossing.operands.assign(call.operand_count(), sequence);
  crossing.results.assign(call.result_count(), -1);
  for (int r = 0; r < call.result_count(); ++r) {
    if (call.has_result(r)) crossing.results[r] = sequence;
  }
  if (bias >= 0) crossing.operands[bias] = rows;
  if (call.result_count() > 3 && call.has_result(3)) crossing.results[3] = rows;
  crossing.moves = {{false, key}, {false, call.find("value")}};
  for (const auto* documents : {"documents", "key_documents"}) {
    if (const int i = call.find(documents); i >= 0) crossing.operands[i] = 1;  // of [b, s]
  }
  crossing.visits = crossing.zigzag = true;
  return crossing;
}

// Grouped queries: shard i of the query heads needs shard i of the key heads, so both split evenly.
// A key head that all query heads share is replicated.
std::optional<Pattern> attention(const Call& call, Role role) {
  const int query = call.find("query"), key = call.find("key"), value = call.find("value");
  if (query < 0 || key < 0 || value < 0 || call.rank(query) != 4) return {};
  const int64_t heads = call.shape(query)[1], groups = call.shape(key)[1];
  auto pattern = whole_pattern(call);
  const Letters at = {pattern.add(role), pattern.add(role, heads != groups && groups != 1),
                      may_shard_queries(call) ? pattern.add(role) : -1};
  for (auto& dim : pattern.dims) dim.one_piece = true;
  if (at.s >= 0) pattern.dims[at.s].zigzag = call.find("bias") < 0;
  if (auto crossing = ring(call)) pattern.communicating = {std::move(*crossing)};
  const int kv_heads = groups == 1 && heads != 1 ? -1 : at.h;
  for (int i = 0; i < call.operand_count(); ++i) {
    const auto& name = call.argument_of(i);
    if (name == "key" || name == "value") {
      pattern.operands[i] = {at.b, kv_heads, -1, -1};
    } else if (name == "logsumexp") {
      pattern.operands[i] = {at.b, at.h, at.s};
    } else if (name == "documents") {
      pattern.operands[i] = {at.b, at.s};
    } else if (name == "key_documents") {
      pattern.operands[i] = {at.b, -1};
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

// Heads as in attention. Rows are not sharded: a rank that has some of them would not write the
// others' keys and values to its caches.
std::optional<Pattern> cached_attention(const Call& call) {
  const int query = call.find("query"), key = call.find("key");
  if (query < 0 || key < 0 || call.rank(query) != 4) return {};
  const int64_t heads = call.shape(query)[1], groups = call.shape(key)[1];
  auto pattern = whole_pattern(call);
  const int h = pattern.add(Role::free, heads != groups && groups != 1);
  pattern.dims[h].one_piece = true;
  const int kv_heads = groups == 1 && heads != 1 ? -1 : h;
  pattern.operands[query][1] = pattern.results[0][1] = h;
  for (const auto* name : {"key", "value", "key_cache", "value_cache"}) {
    pattern.operands[call.find(name)][1] = kv_heads;
  }
  pattern.in_place = {call.find("key_cache"), call.find("value_cache")};
  return pattern;
}

}  // namespace

void add_attention_rules(Rules& rules) {
  const auto forward = [](const Call& call) { return attention(call, Role::free); };
  const auto backward = [](const Call& call) { return attention(call, Role::sum); };
  rules.add("perigee::attention", {forward, lower_attention});
  rules.add("perigee::attention_backward", {backward, lower_attention});
  rules.add("perigee::cached_attention", {cached_attention});
}

}  // namespace perigee::shard
