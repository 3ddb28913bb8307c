// Attention within documents: the kernels against the reference, for any numbers of documents.
#include "exec/kernels/attention/attention_segments.h"
#include "exec/kernels/kernels.h"
#include "exec/memory/allocator.h"
#include "exec/memory/dry_run.h"
#include "exec/reference/reference.h"
#include "exec/tensor.h"
#include "tests/exec/close.h"
#include "tests/exec/support.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

using graph::DType;
using kernels::attention_segments;

// [2, heads, rows, size] in the layout of a fused projection.
at::Tensor part(int64_t rows, int64_t heads, int64_t size, at::ScalarType type) {
  return at::randn({2, rows, heads, size}, at::kDouble).to(type).transpose(1, 2);
}

// Document numbers of two sequences: documents of these lengths, and the same in reverse.
at::Tensor numbers(std::vector<int64_t> lengths) {
  std::vector<int64_t> all;
  for (size_t d = 0; d < lengths.size(); ++d) all.insert(all.end(), lengths[d], int64_t(d) * 3);
  const auto one = at::tensor(all, at::kLong);
  return at::stack({one, one.flip(0)});
}

struct AttentionCase {
  at::ScalarType type;
  bool causal;
  int64_t groups;
  at::Tensor documents, key_documents;  // [2, s], [2, t]
};

// Compares the kernels with the reference; returns the reference's output.
at::Tensor compare(const AttentionCase& c, double tolerance) {
  at::manual_seed(1);
  const int64_t s = c.documents.size(1), t = c.key_documents.size(1);
  const auto q = part(s, 4, 8, c.type), k = part(t, c.groups, 8, c.type);
  const auto v = part(t, c.groups, 6, c.type);
  const auto dtype = dtype_of(c.type);
  const auto wide = c.type == at::kDouble ? DType::float64 : DType::float32;
  const Args args = {{"causal", c.causal}, {"scale", 0.3}};
  Named in = {{"query", q}, {"key", k}, {"value", v}};
  in.insert(in.end(), {{"documents", c.documents}, {"key_documents", c.key_documents}});
  const auto run = [&](const auto& kernel, const char* op, const Named& operands,
                       const std::vector<graph::TensorType>& types) {
    return call(kernel, op, operands, args, types);
  };
  const std::vector<graph::TensorType> types = {{dtype, {2, 4, s, 6}}, {wide, {2, 4, s}}};
  const auto slow = run(reference_kernel, "perigee::attention", in, types);
  require_close(run(cpu_kernel, "perigee::attention", in, types), slow, tolerance);
  in.insert(in.end(), {{"grad", part(s, 4, 6, c.type)}, {"output", slow[0]}});
  in.insert(in.end(), {{"logsumexp", slow[1]}});
  const std::vector<graph::TensorType> back = {
      {dtype, {2, 4, s, 8}}, {dtype, {2, c.groups, t, 8}}, {dtype, {2, c.groups, t, 6}}};
  require_close(run(cpu_kernel, "perigee::attention_backward", in, back),
                run(reference_kernel, "perigee::attention_backward", in, back), tolerance);
  return slow[0];
}

TEST_CASE("segments are runs of queries with the range of their document's keys") {
  const std::vector<int64_t> queries = {4, 4, 4, 7, 7, 9, 4}, keys = {4, 4, 7, 4, 7, 7};
  const auto found = attention_segments({queries.data(), 7}, {keys.data(), 6});
  REQUIRE(found.size() == 4);
  const auto is = [](const kernels::AttentionSegment& s, std::vector<int64_t> wanted, bool all) {
    return std::vector{s.row, s.rows, s.key, s.keys} == wanted && s.all_keys == all;
  };
  CHECK(is(found[0], {0, 3, 0, 4}, false));
  CHECK(is(found[1], {3, 2, 2, 4}, false));
  CHECK(is(found[2], {5, 1, 0, 0}, true));
  CHECK(is(found[3], {6, 1, 0, 4}, false));
  const std::vector<int64_t> ordered = {0, 0, 2, 2, 2};
  const auto own = attention_segments({ordered.data(), 5}, {ordered.data(), 5});
  REQUIRE(own.size() == 2);
  CHECK(is(own[0], {0, 2, 0, 2}, true));
  CHECK(is(own[1], {2, 3, 2, 3}, true));
}

TEST_CASE("attention within documents equals the reference in every type") {
  const auto type = GENERATE(at::kDouble, at::kFloat, at::kBFloat16);
  const bool causal = GENERATE(true, false);
  const int64_t groups = GENERATE(1, 2, 4);
  const double tolerance = type == at::kDouble ? 1e-12 : type == at::kFloat ? 3e-5 : 3e-2;
  const auto documents = numbers({3, 1, 5, 2});
  const auto one = compare({type, causal, groups, documents, documents}, tolerance);
  // Without the mask the result is another.
  const auto zeros = at::zeros_like(documents);
  CHECK_FALSE(at::allclose(compare({type, causal, groups, zeros, zeros}, tolerance), one));
}

TEST_CASE("attention within documents of many rows equals the reference") {
  const bool causal = GENERATE(true, false);
  const auto documents = numbers({70, 1, 129, 40});
  compare({at::kFloat, causal, 2, documents, documents}, 3e-5);
  compare({at::kDouble, causal, 2, documents, documents}, 1e-12);
}

TEST_CASE("documents need not be in order, and may have no keys") {
  const bool causal = GENERATE(true, false);
  at::manual_seed(3);
  const auto random = at::randint(0, 4, {2, 40}, at::kLong);
  compare({at::kFloat, causal, 2, random, random}, 3e-5);
  // Keys of another part of the sequence, as in a ring: most queries see none.
  const auto keys = at::randint(3, 6, {2, 25}, at::kLong);
  const auto seen = compare({at::kDouble, false, 2, random, keys}, 1e-12);
  const auto none = random.ne(3).unsqueeze(1).unsqueeze(-1);
  CHECK(seen.masked_select(none).abs().max().item<double>() == 0);
  CHECK(seen.abs().max().item<double>() > 0);
}

TEST_CASE("allocations of attention within documents do not depend on their numbers") {
  const auto documents = numbers({3, 1, 5, 2});
  const std::vector<graph::TensorType> operands = {{DType::bfloat16, {2, 4, 11, 8}},
                                                   {DType::bfloat16, {2, 2, 11, 8}},
                                                   {DType::bfloat16, {2, 2, 11, 8}},
                                                   {DType::int64, {2, 11}},
                                                   {DType::int64, {2, 11}}};
  compile::OpInstance instance{.op = "perigee::attention", .operands = operands};
  const char* names[] = {"query", "key", "value", "documents", "key_documents"};
  for (int32_t i = 0; i < 5; ++i) instance.args.emplace_back(names[i], graph::ValueId{i});
  instance.args.emplace_back("causal", true);
  instance.args.emplace_back("scale", 0.3);
  for (const auto& type : operands) {
    instance.operand_strides.push_back(at::empty(type.shape, at::kMeta).strides().vec());
  }
  instance.outputs = {graph::TensorType{DType::bfloat16, {2, 4, 11, 8}},
                      graph::TensorType{DType::float32, {2, 4, 11}}};
  const auto trace = record_trace(instance);
  REQUIRE(trace);
  // The allocations of the same op on real documents.
  const auto kernel = cpu_kernel(op_of(instance));
  std::vector<at::Tensor> tensors, results(2);
  for (size_t i = 0; i < 3; ++i) {
    tensors.push_back(at::randn(operands[i].shape).to(at::kBFloat16));
  }
  tensors.insert(tensors.end(), {documents, documents});
  RecordedAllocations recorded;
  kernel(tensors, results, {});
  std::vector<int64_t> sizes;
  for (const auto& entry : recorded.entries()) sizes.push_back(entry.bytes);
  CHECK(sizes == trace->allocations);
}

}  // namespace
}  // namespace perigee::exec
