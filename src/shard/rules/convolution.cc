// Convolution and its convolution_backward: the batch and, without groups, the channels are free; spatial dims
// are not sharded.
#include "shard/rules/families.h"

namespace perigee::shard {
namespace {

struct Channels {
  int input = -1, output = -1;  // dims of the channels
};

// The weight is [out, in / groups, *], or transposed [in, out / groups, *].
void mark_weight(std::vector<int>& letters, const Channels& c, bool transposed) {
  letters[0] = transposed ? c.input : c.output;
  letters[1] = transposed ? c.output : c.input;
}

std::optional<Pattern> convolution(const Call& call) {
  const int input = call.find("input"), weight = call.find("weight"), bias = call.find("bias");
  if (input != 0 || weight != 1 || call.rank(0) < 3 || call.rank(0) != call.rank(1)) return {};
  auto pattern = whole_pattern(call);
  const bool transposed = call.node().get<bool>("transposed", false);
  const int n = pattern.add();
  Channels c;
  if (call.node().get<int64_t>("groups", 1) == 1) c = {pattern.add(Role::sum), pattern.add()};
  pattern.operands[0][0] = n;
  pattern.operands[0][1] = c.input;
  mark_weight(pattern.operands[1], c, transposed);
  pattern.results[0][0] = n;
  pattern.results[0][1] = c.output;
  pattern.linear = {{0}, {1}};
  if (bias >= 0) {
    pattern.operands[bias][0] = c.output;
    pattern.addends = {bias};
    for (auto& group : pattern.linear) group.push_back(bias);
  }
  return pattern;
}

std::optional<Pattern> convolution_backward(const Call& call) {
  const int grad = call.find("grad_output"), input = call.find("input"),
            weight = call.find("weight");
  if (grad != 0 || input != 1 || weight != 2 || call.result_count() != 3 || call.rank(1) < 3 ||
      call.rank(1) != call.rank(2)) {
    return {};
  }
  auto pattern = whole_pattern(call);
  const bool transposed = call.node().get<bool>("transposed", false);
  const int n = pattern.add(Role::sum);
  Channels c;
  if (call.node().get<int64_t>("groups", 1) == 1) {
    // Every shard of the input channels has the bias's whole gradient, not an addend of it.
    c = {call.has_result(2) ? -1 : pattern.add(Role::sum), pattern.add(Role::sum)};
  }
  pattern.operands[0][0] = pattern.operands[1][0] = n;
  pattern.operands[0][1] = c.output;
  pattern.operands[1][1] = c.input;
  mark_weight(pattern.operands[2], c, transposed);
  if (call.has_result(0)) pattern.results[0] = pattern.operands[1];
  if (call.has_result(1)) pattern.results[1] = pattern.operands[2];
  if (call.has_result(2)) pattern.results[2][0] = c.output;
  pattern.linear = {{0}};
  pattern.sizes = {{"bias_sizes", false, 0, 1}};
  return pattern;
}

}  // namespace

void add_convolution_rules(Rules& rules) {
  rules.add("aten::convolution", {convolution});
  rules.add("aten::convolution_backward", {convolution_backward});
}

}  // namespace perigee::shard
