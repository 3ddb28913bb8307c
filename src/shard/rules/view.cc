// Ops that only move elements. Which dims may be sharded follows from shapes.
#include <algorithm>
#include <numeric>

#include "shard/rules/families.h"

namespace perigee::shard {
namespace {

Pattern moving(const Call& call) {
  auto pattern = whole_pattern(call);
  pattern.any_reduce = true;
  if (call.operand_count() > 0) pattern.linear = {{0}};
  return pattern;
}

// One side of a reshape's group: dims [first, last) of a tensor.
struct Side {
  const std::vector<int64_t>& shape;
  std::vector<int>& letters;
  bool of_result;
  size_t first, last;
};

// Dims of `own` that cut `other` within one dim, in runs; the leading one cuts both in one piece.
void inner_dims(Pattern& pattern, const Side& own, const Side& other) {
  int64_t run = 1;  // of elements that share the indices of the dims up to d
  for (size_t d = own.last; d-- > own.first + 1;) {
    run *= own.shape[d];
    if (own.shape[d] == 1) continue;
    // The dim of the other side whose indices change within the run and beyond it.
    int64_t below = 1;
    size_t e = other.last;
    while (below * other.shape[--e] <= run && e > other.first) below *= other.shape[e];
    if (run % below != 0 || below * other.shape[e] % run != 0 || run == below) continue;
    own.letters[d] = pattern.add(Role::free, true);
    pattern.inner.push_back({own.letters[d], other.of_result, 0, static_cast<int>(e), run / below});
  }
}

// Groups of dims with equal products, in row-major order. A group of one dim on each side is the
// same dim. Of another group the leading dims may be sharded, evenly: then a shard is the same run
// of elements on both sides. InnerDim dims cut the other side in runs.
std::optional<Pattern> reshape(const Call& call) {
  auto pattern = moving(call);
  const auto& from = call.shape(0);
  const auto& to = call.result_shape(0);
  if (call.operand_type(0).numel() == 0) return pattern;
  size_t i = 0, j = 0;
  while (i < from.size() || j < to.size()) {
    // Dims of size 1 form groups of their own, and are the same dim if both sides have one.
    const bool one_from = i < from.size() && from[i] == 1;
    const bool one_to = j < to.size() && to[j] == 1;
    if (one_from && one_to) {
      pattern.operands[0][i++] = pattern.results[0][j++] = pattern.add();
      continue;
    }
    if (one_from || one_to) {
      (one_from ? i : j)++;
      continue;
    }
    const size_t first_i = i, first_j = j;
    int64_t left = from[i++], right = to[j++];
    const bool plain = left == right;
    while (left != right) {
      if (left < right) {
        left *= from[i++];
      } else {
        right *= to[j++];
      }
    }
    const int dim = pattern.add(Role::free, !plain);
    pattern.operands[0][first_i] = dim;
    pattern.results[0][first_j] = dim;
    if (plain) continue;
    const Side operand{from, pattern.operands[0], false, first_i, i};
    const Side result{to, pattern.results[0], true, first_j, j};
    inner_dims(pattern, operand, result);
    inner_dims(pattern, result, operand);
  }
  return pattern;
}

std::optional<Pattern> expand(const Call& call) {
  auto pattern = moving(call);
  const auto& from = call.shape(0);
  const auto& to = call.result_shape(0);
  for (size_t d = 0; d < to.size(); ++d) pattern.results[0][d] = pattern.add();
  for (size_t d = 0; d < from.size(); ++d) {
    const size_t at = to.size() - from.size() + d;
    if (from[d] == to[at]) pattern.operands[0][d] = pattern.results[0][at];
  }
  return pattern;
}

// Result dim r is operand dim order[r].
Pattern permuted(const Call& call, const std::vector<int>& order) {
  auto pattern = moving(call);
  for (auto& letter : pattern.operands[0]) letter = pattern.add();
  for (size_t r = 0; r < order.size(); ++r) {
    pattern.results[0][r] = pattern.operands[0][order[r]];
  }
  return pattern;
}

std::optional<Pattern> transpose(const Call& call) {
  const int rank = call.rank(0);
  std::vector<int> order(rank);
  std::iota(order.begin(), order.end(), 0);
  if (rank < 2) return permuted(call, order);
  const bool plain = call.node().op == "aten::t";
  std::swap(order[plain ? 0 : call.dim("dim0", rank, 0)],
            order[plain ? 1 : call.dim("dim1", rank, 0)]);
  return permuted(call, order);
}

std::optional<Pattern> permute(const Call& call) {
  const int rank = call.rank(0);
  std::vector<int> order;
  for (auto d : call.node().get<std::vector<int64_t>>("dims", {})) {
    order.push_back(static_cast<int>(d < 0 ? d + rank : d));
  }
  if (static_cast<int>(order.size()) != rank) return {};
  return permuted(call, order);
}

// `fewer` lacks the dim `at` of `more`; the others correspond in order.
void without_dim(const std::vector<int>& more, std::vector<int>& fewer, int at) {
  for (size_t d = 0, out = 0; d < more.size(); ++d) {
    if (static_cast<int>(d) != at) fewer[out++] = more[d];
  }
}

std::optional<Pattern> unsqueeze(const Call& call) {
  auto pattern = moving(call);
  for (auto& letter : pattern.results[0]) letter = pattern.add();
  without_dim(pattern.results[0], pattern.operands[0], call.dim("dim", call.rank(0) + 1, 0));
  return pattern;
}

std::optional<Pattern> squeeze(const Call& call) {
  auto pattern = moving(call);
  const auto& shape = call.shape(0);
  const auto named = call.named_dims("dim", call.rank(0));
  int out = 0;
  for (int d = 0; d < call.rank(0); ++d) {
    if (named[d] && shape[d] == 1) continue;
    pattern.operands[0][d] = pattern.results[0][out++] = pattern.add();
  }
  return pattern;
}

// A local dim of size 1 may be a shard of a larger one, which the op itself would drop.
std::vector<graph::ValueId> lower_squeeze(RuleLowering& lowering) {
  return {lowering.emit("perigee::reshape", {{"self", lowering.operands[0]}},
                        lowering.local_types()[0])};
}

// One element of a dim: the others correspond.
std::optional<Pattern> select(const Call& call) {
  auto pattern = moving(call);
  const int at = call.dim("dim", call.rank(0), 0);
  for (int d = 0; d < call.rank(0); ++d) pattern.operands[0][d] = d == at ? -1 : pattern.add();
  for (auto& result : pattern.results) {
    if (!result.empty()) without_dim(pattern.operands[0], result, at);
  }
  return pattern;
}

std::optional<Pattern> select_backward(const Call& call) {
  auto pattern = moving(call);
  pattern.any_reduce = false;
  const int at = call.dim("dim", call.result_rank(0), 0);
  for (int d = 0; d < call.result_rank(0); ++d) {
    pattern.results[0][d] = d == at ? -1 : pattern.add();
  }
  without_dim(pattern.results[0], pattern.operands[0], at);
  return pattern;
}

// Dims keep their positions; those whose size changes, or that an attribute names, are not sharded.
Pattern same_places(const Call& call, const std::vector<bool>& whole) {
  auto pattern = moving(call);
  for (int d = 0; d < call.rank(0); ++d) {
    pattern.operands[0][d] = whole[d] ? -1 : pattern.add();
  }
  for (int r = 0; r < call.result_count(); ++r) {
    if (call.has_result(r)) pattern.results[r] = pattern.operands[0];
  }
  return pattern;
}

std::optional<Pattern> along_dim(const Call& call) {
  std::vector<bool> whole(call.rank(0), false);
  if (whole.empty()) return {};
  whole[call.dim("dim", call.rank(0), 0)] = true;
  return same_places(call, whole);
}

// slice_backward pads its operand with zeros, so it only moves sums.
std::optional<Pattern> slice_backward(const Call& call) {
  auto pattern = along_dim(call);
  if (pattern) pattern->any_reduce = false;
  return pattern;
}

// A part of self is replaced: jointly linear in both.
std::optional<Pattern> slice_scatter(const Call& call) {
  const int rank = call.rank(0);
  if (rank == 0 || call.find("src") != 1 || call.rank(1) != rank) return {};
  auto pattern = whole_pattern(call);
  const int at = call.dim("dim", rank, 0);
  for (int d = 0; d < rank; ++d) pattern.results[0][d] = d == at ? -1 : pattern.add();
  pattern.operands = {pattern.results[0], pattern.results[0]};
  pattern.linear = {{0, 1}};
  return pattern;
}

std::optional<Pattern> select_scatter(const Call& call) {
  const int rank = call.rank(0);
  if (rank == 0 || call.find("src") != 1 || call.rank(1) != rank - 1) return {};
  auto pattern = whole_pattern(call);
  const int at = call.dim("dim", rank, 0);
  for (int d = 0; d < rank; ++d) pattern.results[0][d] = d == at ? -1 : pattern.add();
  pattern.operands[0] = pattern.results[0];
  without_dim(pattern.results[0], pattern.operands[1], at);
  pattern.linear = {{0, 1}};
  return pattern;
}

// `square` has two dims that `line` lacks; `line` has one at its end instead.
void diagonal_dims(const Call& call, Pattern& pattern, std::vector<int>& square,
                   std::vector<int>& line) {
  const int rank = static_cast<int>(square.size());
  const int dim1 = call.dim("dim1", rank, 0), dim2 = call.dim("dim2", rank, 1);
  size_t out = 0;
  for (int d = 0; d < rank; ++d) {
    if (d != dim1 && d != dim2) square[d] = line[out++] = pattern.add();
  }
}

std::optional<Pattern> diagonal(const Call& call) {
  auto pattern = moving(call);
  diagonal_dims(call, pattern, pattern.operands[0], pattern.results[0]);
  return pattern;
}

std::optional<Pattern> diagonal_backward(const Call& call) {
  auto pattern = moving(call);
  pattern.any_reduce = false;
  diagonal_dims(call, pattern, pattern.results[0], pattern.operands[0]);
  return pattern;
}

// Windows along a dim become a new last dim.
void window_dims(Pattern& pattern, std::vector<int>& plain, std::vector<int>& windows, int at) {
  for (size_t d = 0; d < plain.size(); ++d) {
    if (static_cast<int>(d) != at) plain[d] = windows[d] = pattern.add();
  }
}

std::optional<Pattern> unfold(const Call& call) {
  auto pattern = moving(call);
  window_dims(pattern, pattern.operands[0], pattern.results[0],
              call.dim("dimension", call.rank(0), 0));
  return pattern;
}

std::optional<Pattern> unfold_backward(const Call& call) {
  auto pattern = moving(call);
  pattern.any_reduce = false;
  window_dims(pattern, pattern.results[0], pattern.operands[0],
              call.dim("dim", call.result_rank(0), 0));
  return pattern;
}

std::optional<Pattern> flip(const Call& call) {
  return same_places(call, call.named_dims("dims", call.rank(0)));
}

std::optional<Pattern> roll(const Call& call) {
  const auto dims = call.node().get<std::vector<int64_t>>("dims", {});
  if (dims.empty()) return moving(call);  // rolls the flattened tensor
  return same_places(call, call.named_dims("dims", call.rank(0)));
}

std::optional<Pattern> repeat(const Call& call) {
  auto pattern = moving(call);
  const auto repeats = call.node().get<std::vector<int64_t>>("repeats", {});
  if (static_cast<int>(repeats.size()) != call.result_rank(0)) return {};
  for (int d = 0; d < call.rank(0); ++d) {
    const size_t at = repeats.size() - call.rank(0) + d;
    if (repeats[at] == 1) pattern.operands[0][d] = pattern.results[0][at] = pattern.add();
  }
  return pattern;
}

std::optional<Pattern> pad(const Call& call) {
  std::vector<bool> whole(call.rank(0));
  for (int d = 0; d < call.rank(0); ++d) whole[d] = call.shape(0)[d] != call.result_shape(0)[d];
  const auto amounts = call.node().get<std::vector<int64_t>>("pad", {});
  for (size_t p = 0; p < amounts.size(); ++p) {
    if (amounts[p] != 0) whole[call.rank(0) - 1 - static_cast<int>(p / 2)] = true;
  }
  auto pattern = same_places(call, whole);
  pattern.any_reduce = false;
  const auto* value = call.node().find("value");
  const bool zero = !value || std::holds_alternative<std::monostate>(*value) ||
                    call.node().get<double>("value", 0.0) == 0.0;
  if (!zero) pattern.linear.clear();
  return pattern;
}

std::optional<Pattern> cat(const Call& call) {
  auto pattern = whole_pattern(call);
  const int rank = call.result_rank(0);
  const int at = call.dim("dim", rank, 0);
  for (int d = 0; d < rank; ++d) pattern.results[0][d] = d == at ? -1 : pattern.add();
  std::vector<int> all;
  for (int i = 0; i < call.operand_count(); ++i) {
    if (call.rank(i) != rank) return {};  // an old-style empty tensor
    pattern.operands[i] = pattern.results[0];
    all.push_back(i);
  }
  pattern.linear = {all};
  pattern.any_reduce = true;
  return pattern;
}

std::optional<Pattern> stack(const Call& call) {
  auto pattern = whole_pattern(call);
  const int rank = call.result_rank(0);
  const int at = call.dim("dim", rank, 0);
  for (int d = 0; d < rank; ++d) pattern.results[0][d] = d == at ? -1 : pattern.add();
  std::vector<int> all;
  for (int i = 0; i < call.operand_count(); ++i) {
    without_dim(pattern.results[0], pattern.operands[i], at);
    all.push_back(i);
  }
  pattern.linear = {all};
  pattern.any_reduce = true;
  return pattern;
}

}  // namespace

void add_view_rules(Rules& rules) {
  rules.add("perigee::reshape", {reshape});
  rules.add("perigee::expand", {expand});
  for (const char* op : {"aten::t", "aten::transpose.int"}) rules.add(op, {transpose});
  rules.add("aten::permute", {permute});
  rules.add("aten::unsqueeze", {unsqueeze});
  for (const char* op : {"aten::squeeze", "aten::squeeze.dim", "aten::squeeze.dims"}) {
    rules.add(op, {squeeze, lower_squeeze});
  }
  rules.add("aten::select.int", {select});
  rules.add("aten::unbind.int", {select});
  rules.add("aten::select_backward", {select_backward});
  rules.add("aten::slice.Tensor", {along_dim});
  rules.add("aten::slice_backward", {slice_backward});
  for (const char* op : {"aten::split.Tensor", "aten::split_with_sizes"}) {
    rules.add(op, {along_dim});
  }
  rules.add("aten::slice_scatter", {slice_scatter});
  rules.add("aten::select_scatter", {select_scatter});
  rules.add("aten::diagonal", {diagonal});
  rules.add("aten::diagonal_backward", {diagonal_backward});
  rules.add("aten::unfold", {unfold});
  rules.add("aten::unfold_backward", {unfold_backward});
  rules.add("aten::flip", {flip});
  rules.add("aten::roll", {roll});
  rules.add("aten::repeat", {repeat});
  rules.add("aten::constant_pad_nd", {pad});
  rules.add("aten::cat", {cat});
  rules.add("aten::stack", {stack});
  add_text_rules(rules, {
                            {"aten::tril", "b* r^ c^ -> b* r c; diagonal linear(0)"},
                            {"aten::triu", "b* r^ c^ -> b* r c; diagonal linear(0)"},
                            {"aten::view_as_complex", "b* 1 -> b*; linear(0)"},
                            {"aten::view_as_real", "b* -> b* 1; linear(0)"},
                        });
}

}  // namespace perigee::shard
