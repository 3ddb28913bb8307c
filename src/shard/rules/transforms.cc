// Ops on whole matrices, on whole dims, or on a table: Fourier transforms, linear algebra, search.
// The dims that they work on are not sharded; batch dims are free.
#include <algorithm>

#include "shard/rules/families.h"

namespace perigee::shard {
namespace {

// Same rank, the named dims whole, linear.
std::optional<Pattern> along_named(const Call& call, std::string_view argument) {
  const int rank = call.rank(0);
  if (call.result_rank(0) != rank) return {};
  const auto named = call.named_dims(argument, rank);
  auto pattern = whole_pattern(call);
  for (int d = 0; d < rank; ++d) {
    if (!named[d]) pattern.operands[0][d] = pattern.results[0][d] = pattern.add();
  }
  pattern.linear = {{0}};
  return pattern;
}

std::optional<Pattern> fourier(const Call& call) { return along_named(call, "dim"); }
std::optional<Pattern> rotation(const Call& call) { return along_named(call, "dims"); }

// One of the operands is a table, read by the elements of the other one, whose shape the result
// also has.
std::optional<Pattern> lookup(const Call& call, int table) {
  if (call.operand_count() != 2) return {};
  auto pattern = whole_pattern(call);
  if (call.shape(1 - table) != call.result_shape(0)) return {};
  for (int d = 0; d < call.result_rank(0); ++d) {
    pattern.operands[1 - table][d] = pattern.results[0][d] = pattern.add();
  }
  return pattern;
}

std::optional<Pattern> take(const Call& call) {
  auto pattern = lookup(call, 0);
  if (pattern) pattern->linear = {{0}};
  return pattern;
}

std::optional<Pattern> isin(const Call& call) { return lookup(call, 1); }

// A sequence for all elements, or one for each row.
std::optional<Pattern> searchsorted(const Call& call) {
  const int rank = call.rank(0);
  if (rank == 1) return lookup(call, 0);
  if (call.operand_count() != 2 || call.rank(1) != rank) return {};
  auto pattern = whole_pattern(call);
  for (int d = 0; d + 1 < rank; ++d) {
    if (call.shape(0)[d] != call.shape(1)[d]) return {};
    pattern.operands[0][d] = pattern.operands[1][d] = pattern.results[0][d] = pattern.add();
  }
  return pattern;
}

// Returns the pattern of an op whose tensors all have the batch dims of the first operand, a stack
// of matrices; nothing where one lacks them (a broadcast operand, a result that is left out).
std::optional<Pattern> matrices(const Call& call) {
  const int batch = call.rank(0) - 2;
  if (batch < 0) return {};
  auto pattern = whole_pattern(call);
  std::vector<int> dims;
  for (int d = 0; d < batch; ++d) dims.push_back(pattern.add());
  const auto mark = [&](const std::vector<int64_t>& shape, std::vector<int>& letters) {
    if (static_cast<int>(shape.size()) < batch ||
        !std::equal(dims.begin(), dims.end(), shape.begin(),
                    [&](int letter, int64_t size) { return call.shape(0)[letter] == size; })) {
      return false;
    }
    std::copy(dims.begin(), dims.end(), letters.begin());
    return true;
  };
  const std::vector<int64_t> vectors(call.shape(0).begin(), call.shape(0).end() - 1);
  // A matrix without the batch's dims may have the shape of a stack of vectors.
  const int may_be_vectors = call.node().op == "aten::_linalg_solve_ex" ? call.find("B")
                                                                        : call.find("pivots");
  for (int i = 0; i < call.operand_count(); ++i) {
    const bool stacked = call.rank(i) == batch + 2 ||
                         (i == may_be_vectors && call.shape(i) == vectors);
    if (!stacked || !mark(call.shape(i), pattern.operands[i])) return {};
  }
  for (int r = 0; r < call.result_count(); ++r) {
    if (call.has_result(r) && !mark(call.result_shape(r), pattern.results[r])) return {};
  }
  return pattern;
}

// A X = B or X A = B, linear in B.
template <int B>
std::optional<Pattern> solution(const Call& call) {
  auto pattern = matrices(call);
  if (pattern && call.operand_count() > B) pattern->linear = {{B}};
  return pattern;
}

}  // namespace

void add_transform_rules(Rules& rules) {
  for (const char* op : {"aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c"}) {
    rules.add(op, {fourier});
  }
  rules.add("aten::rot90", {rotation});
  rules.add("aten::take", {take});
  rules.add("aten::isin.Tensor_Tensor", {isin});
  rules.add("aten::bucketize.Tensor",
            {[](const Call& call) { return lookup(call, call.find("boundaries")); }});
  rules.add("aten::searchsorted.Tensor", {searchsorted});
  for (const char* op : {"aten::linalg_cholesky_ex", "aten::linalg_qr", "aten::_linalg_eigh",
                         "aten::_linalg_svd", "aten::linalg_inv_ex", "aten::_linalg_det",
                         "aten::_linalg_slogdet", "aten::linalg_matrix_exp"}) {
    rules.add(op, {matrices});
  }
  rules.add("aten::_linalg_solve_ex", {matrices});  // also LU, which does not depend on B
  rules.add("aten::linalg_lu_solve", {solution<2>});
  rules.add("aten::linalg_solve_triangular", {solution<1>});
  rules.add("aten::cholesky_solve", {solution<0>});
  rules.add("aten::_cholesky_solve_helper", {solution<0>});
  add_text_rules(
      rules, {{"aten::addbmm", "self: n p, batch1: b^ n m^, batch2: b m p -> n p; beta alpha"}});
}

}  // namespace perigee::shard
