#include "exec/memory/allocator.h"

#include <c10/core/CPUAllocator.h>

#include <thread>

#include "exec/comm/threads.h"
#include "exec/kernels/kernels.h"
#include "exec/memory/arena.h"
#include "exec/memory/dry_run.h"
#include "exec/op_threads.h"
#include "exec/ops/expert_ops.h"
#include "exec/tensor.h"
#include "tests/exec/processes.h"
#include "tests/exec/support.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

using graph::DType;
using graph::ValueId;

struct Case {
  std::string op;
  std::vector<std::pair<std::string, graph::Arg>> args;
  std::vector<graph::TensorType> operands;
  std::vector<graph::TensorType> outputs;
};

// Ops that allocate more than their results.
std::vector<Case> cases() {
  using Ints = std::vector<int64_t>;
  const graph::Arg none;
  const Ints one = {1, 1}, zero = {0, 0};
  return {
      {"aten::native_layer_norm_backward",
       {{"grad_out", ValueId{0}},
        {"input", ValueId{1}},
        {"normalized_shape", Ints{64}},
        {"mean", ValueId{2}},
        {"rstd", ValueId{3}},
        {"weight", ValueId{4}},
        {"bias", ValueId{4}},
        {"output_mask", std::vector<bool>{true, true, true}}},
       {f32({8, 64}), f32({8, 64}), f32({8, 1}), f32({8, 1}), f32({64})},
       {f32({8, 64}), f32({64}), f32({64})}},
      {"aten::convolution_backward",
       {{"grad_output", ValueId{0}},
        {"input", ValueId{1}},
        {"weight", ValueId{2}},
        {"bias_sizes", Ints{8}},
        {"stride", one},
        {"padding", one},
        {"dilation", one},
        {"transposed", false},
        {"output_padding", zero},
        {"groups", int64_t{1}},
        {"output_mask", std::vector<bool>{true, true, true}}},
       {f32({2, 8, 16, 16}), f32({2, 3, 16, 16}), f32({8, 3, 3, 3})},
       {f32({2, 3, 16, 16}), f32({8, 3, 3, 3}), f32({8})}},
      {"perigee::attention",
       {{"query", ValueId{0}},
        {"key", ValueId{1}},
        {"value", ValueId{2}},
        {"causal", true},
        {"scale", 0.25}},
       {f32({2, 4, 32, 16}), f32({2, 4, 32, 16}), f32({2, 4, 32, 16})},
       {f32({2, 4, 32, 16}), f32({2, 4, 32})}},
      {"perigee::attention_backward",
       {{"grad", ValueId{0}},
        {"query", ValueId{1}},
        {"key", ValueId{2}},
        {"value", ValueId{3}},
        {"output", ValueId{4}},
        {"logsumexp", ValueId{5}},
        {"causal", true},
        {"scale", 0.25}},
       {f32({2, 4, 32, 16}), f32({2, 4, 32, 16}), f32({2, 2, 32, 16}), f32({2, 2, 32, 16}),
        f32({2, 4, 32, 16}), f32({2, 4, 32})},
       {f32({2, 4, 32, 16}), f32({2, 2, 32, 16}), f32({2, 2, 32, 16})}},
      {"perigee::dropout",
       {{"self", ValueId{0}}, {"p", 0.1}, {"key", int64_t{1}}},
       {f32({100, 7})},
       {f32({100, 7})}},
      {"aten::embedding_dense_backward",
       {{"grad_output", ValueId{0}},
        {"indices", ValueId{1}},
        {"num_weights", int64_t{50}},
        {"padding_idx", int64_t{-1}},
        {"scale_grad_by_freq", false}},
       {f32({6, 16}), {DType::int64, {6}}},
       {f32({50, 16})}},
      {"aten::_softmax",
       {{"self", ValueId{0}}, {"dim", int64_t{1}}, {"half_to_float", false}},
       {f32({9, 33})},
       {f32({9, 33})}},
      {"aten::var_mean.correction",
       {{"self", ValueId{0}}, {"dim", Ints{1}}, {"keepdim", true}},
       {f32({9, 33})},
       {f32({9, 1}), f32({9, 1})}},
  };
}

compile::OpInstance instance_of(const Case& c) {
  compile::OpInstance instance{c.op, c.args, c.operands, {}, {c.outputs.begin(), c.outputs.end()}};
  for (const auto& type : c.operands)
    instance.operand_strides.push_back(contiguous_strides(type.shape));
  return instance;
}

std::vector<at::Tensor> random_operands(const Case& c) {
  std::vector<at::Tensor> operands;
  for (const auto& type : c.operands) {
    operands.push_back(type.dtype == DType::int64 ? at::randint(0, 50, type.shape, at::kLong)
                                                  : at::randn(type.shape));
  }
  return operands;
}

TEST_CASE("memory of an op is recorded on zeros, also where they overflow an expert's slots") {
  const graph::TensorType chosen{DType::int64, {1, 8, 2}}, counts{DType::int64, {1, 4}};
  const Case slots{
      "perigee::expert_slots",
      {{"expert", ValueId{0}}, {"experts", int64_t{4}}, {"places", int64_t{4}}, {"dropless", true}},
      {chosen},
      {chosen, counts}};
  CHECK(record_trace(instance_of(slots)));
  // On a GPU the op without its check would allocate other memory.
  CHECK(expert_op_reads_on_host(dry_run_op(instance_of(slots))));
  std::vector<at::Tensor> results(2);
  CHECK_THROWS_WITH(
      cpu_kernel(op_of(instance_of(slots)))({{at::zeros({1, 8, 2}, at::kLong)}}, results, {}),
      Catch::Contains("no token may be left out (dropless)"));
}

TEST_CASE(
    "recorded allocations serve 20 calls on two threads from an arena, bit-equal to free calls") {
  exec::set_op_threads(1);
  for (const auto& c : cases()) {
    const auto instance = instance_of(c);
    const auto trace = record_trace(instance);
    REQUIRE(trace);
    const auto operands = random_operands(c);
    std::vector<at::Tensor> free(c.outputs.size());
    cpu_kernel(op_of(instance))(operands, free, {});
    run_ranks(2, [&](Communicator&) {
      compile::Frame frame{compile::Frame::Kind::scratch, "scratch"};
      std::vector<compile::Allocation> allocations;
      for (auto bytes : trace->allocations) {
        allocations.push_back({bytes, {0, frame.bytes}});
        frame.bytes += (bytes + 63) / 64 * 64;
      }
      const Arena arena({frame}, *cpu_device());
      const auto bases = arena.bases();
      const auto kernel = cpu_kernel(op_of(instance));
      for (int round = 0; round < 20; ++round) {
        std::vector<at::Tensor> out(c.outputs.size());
        {
          PlannedAllocations planned(allocations, bases);
          kernel(operands, out, {});
          planned.check_all_made();
        }
        for (size_t i = 0; i < out.size(); ++i) {
          must(at::equal(out[i], free[i]), c.op + " bits");
          must(out[i].strides().vec() == trace->output_strides[i], c.op + " strides");
          const auto offset = static_cast<const std::byte*>(out[i].const_data_ptr()) - bases[0];
          must(offset == allocations[trace->output_allocation[i]].place.offset, c.op + " address");
        }
      }
    });
  }
}

TEST_CASE(
    "a trace has the frees before each allocation, and results that share an operand's memory") {
  const auto conv = record_trace(instance_of(cases()[1])).value();
  REQUIRE(conv.allocations.size() > 3);
  REQUIRE(conv.freed_before.size() == conv.allocations.size());
  const compile::OpInstance view{
      "aten::t", {{"self", ValueId{0}}}, {f32({3, 4})}, {{4, 1}}, {f32({4, 3})}};
  const auto trace = record_trace(view).value();
  REQUIRE(trace.allocations.empty());
  REQUIRE(trace.output_allocation == std::vector<int32_t>{-1});
  REQUIRE(trace.output_strides == std::vector<std::vector<int64_t>>{{1, 4}});
}

TEST_CASE("a dry run of a large op frees all memory") {
  const compile::OpInstance large{"aten::mm",
                                  {{"self", ValueId{0}}, {"mat2", ValueId{1}}},
                                  {f32({64, 1 << 20}), f32({1 << 20, 64})},
                                  {{1 << 20, 1}, {64, 1}},
                                  {f32({64, 64})}};
  install_allocator();
  const auto before = memory_count().others;
  REQUIRE(record_trace(large)->allocations.at(0) == 64 * 64 * 4);
  REQUIRE(memory_count().others == before);
}

TEST_CASE("frames are zero, aligned and counted, and freed with their last tensor") {
  install_allocator();
  const auto before = memory_count().arenas;
  at::Tensor kept;
  {
    const Arena arena({{compile::Frame::Kind::persistent, "p", 100},
                       {compile::Frame::Kind::microbatch, "m", 64, 3}},
                      *cpu_device());
    REQUIRE(arena.bytes() == 128 + 3 * 64);
    REQUIRE(memory_count().arenas == before + arena.bytes());
    REQUIRE(arena.bases({0, 2})[1] - arena.bases()[1] == 128);
    REQUIRE(arena.bases({0, 2})[0] == arena.bases()[0]);
    REQUIRE(reinterpret_cast<uintptr_t>(arena.bases()[0]) % 64 == 0);
    kept = arena.tensor(arena.bases()[0], f32({25}), {1});
    REQUIRE(kept.eq(0).all().item<bool>());
  }
  kept.fill_(1);
  REQUIRE(memory_count().arenas == before + 320);
  kept.reset();
  REQUIRE(memory_count().arenas == before);
}

TEST_CASE("an error for want of memory leaves the frames of other programs") {
  install_allocator();
  const auto before = memory_count().arenas;
  const Arena arena({{compile::Frame::Kind::persistent, "p", 128}}, *cpu_device());
  REQUIRE_THROWS_WITH(allocate_frames(int64_t{1} << 60),
                      Catch::Contains("need 1152921504606846976 bytes"));
  CHECK(memory_count().arenas == before + 128);
  // An op's result in a frame is freed: a pointer that the system's allocator does not know.
  c10::GetCPUAllocator()->raw_deallocate(arena.bases()[0] + 64);
}

TEST_CASE("memory that bypasses the allocator is counted as the libraries'") {
  install_allocator();
  constexpr int64_t kBytes = 64 << 20, kSlack = 4 << 20;
  const int64_t before = library_bytes();
  REQUIRE(before > 0);
  const auto tensor = at::ones({kBytes}, at::kByte);
  CHECK(std::abs(library_bytes() - before) < kSlack);
  const auto frames = allocate_frames(kBytes);
  CHECK(std::abs(library_bytes() - before) < kSlack);
  const std::vector<char> own(kBytes, 1);
  CHECK(std::abs(library_bytes() - before - kBytes) < kSlack);
}

}  // namespace

}  // namespace perigee::exec
