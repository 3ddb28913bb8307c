// Results at planned addresses on a GPU. Without a GPU nothing runs.
#include <thread>

#include "exec/executor.h"
#include "exec/memory/served_allocations.h"
#include "tests/cuda/support.h"
#include "tests/exec/builder.h"

namespace perigee::exec {
namespace {

using compile::Allocation;
using Kind = compile::Binding::Kind;

const mesh::Mesh kOne{.axes = {{"data", 1}}};
constexpr int64_t kRows = 1000, kColumns = 300;
constexpr int64_t kBytes = kRows * kColumns * 4;
const graph::TensorType kType{graph::DType::float32, {kRows, kColumns}};

// Returns the first GPU, or nullptr on a machine without GPUs.
std::shared_ptr<Device> gpu() {
  const auto all = devices();
  return all.size() > 1 ? all[1].device : nullptr;
}

at::Tensor empty(int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(at::kCUDA, 0));
}

TEST_CASE("LibTorch's tensors on a GPU lie where a thread's allocations are served") {
  const auto device = gpu();
  if (!device) return;
  const auto entered = device->enter();
  const auto frame = device->allocate(4096, false);
  const std::vector<std::byte*> bases = {frame.get()};
  ServedAllocations served(std::vector<Allocation>{{1000, {0, 0}}, {500, {0, 1024}}}, bases);
  served.start();
  device->serve(&served);
  {
    const auto other = empty(600);
    const auto second = empty(500), first = empty(1000), again = empty(500);
    CHECK(first.data_ptr() == frame.get());
    CHECK(second.data_ptr() == frame.get() + 1024);
    CHECK_FALSE(served.holds(other.data_ptr()));
    CHECK_FALSE(served.holds(again.data_ptr()));
    // A tensor at a planned address may be used on other streams.
    first.record_stream(c10::Stream(c10::Stream::DEFAULT, device->place()));
  }
  CHECK(served.in_use() == 0);
  served.start();
  std::thread([&] {
    const auto elsewhere = empty(1000);
    CHECK_FALSE(served.holds(elsewhere.data_ptr()));
    CHECK(elsewhere.data_ptr() != frame.get());
  }).join();
  device->serve(nullptr);
  CHECK(empty(1000).data_ptr() != frame.get());
  device->synchronize({});
}

struct Run {
  at::Tensor result;
  int64_t frames = 0, peak = 0;
};

// Runs result = op(x) on the GPU with the allocations of its trace.
Run run(const std::shared_ptr<Device>& device, const std::string& op, const Args& args,
        const at::Tensor& x, bool traced) {
  compile::OpInstance instance{.op = op,
                               .args = {{"self", graph::ValueId{0}}},
                               .operands = {kType},
                               .operand_strides = {contiguous_strides(kType.shape)},
                               .outputs = {kType}};
  instance.args.insert(instance.args.end(), args.begin(), args.end());
  const auto trace = device->dry_run(instance).value();
  REQUIRE(trace.complete);
  Builder b;
  const auto operand = b.load("x", kType);
  const auto result = b.bind(Kind::result, "result", kType);
  compile::Instruction instruction{.op = op, .args = {{"self", operand}}, .outputs = {result}};
  instruction.args.insert(instruction.args.end(), args.begin(), args.end());
  instruction.traced = traced;
  for (size_t k = 0; k < trace.allocations.size(); ++k) {
    const auto bytes = trace.allocations[k];
    const bool own = trace.output_allocation[0] == static_cast<int32_t>(k);
    instruction.allocations.push_back(
        {bytes, own ? b.program.values[result.index].place : b.place(1, bytes)});
  }
  b.add(instruction);
  const auto communicator = single_communicator();
  Executor executor(b.finish(0, 1), *communicator, kOne, {.device = device});
  Run run{.frames = executor.frame_bytes()};
  for (int64_t step = 1; step <= 2; ++step) {
    device->reset_peak();
    executor.run({.step = step, .data = [&](const std::string&, int64_t) { return x; }});
    run.peak = device->peak();
  }
  run.result = executor.tensor(Kind::result, "result").cpu();
  return run;
}

TEST_CASE("an op on a GPU makes its result at the planned address, so that memory holds it once") {
  const auto device = gpu();
  if (!device) return;
  seed(5);
  const auto x = at::randn({kRows, kColumns});
  const auto check = [&](const std::string& op, const Args& args, const at::Tensor& expected) {
    INFO(op);
    const auto served = run(device, op, args, x, true), copied = run(device, op, args, x, false);
    CHECK(at::allclose(served.result, expected, 1e-3, 1e-3));
    CHECK(at::equal(served.result, copied.result));
    CHECK(served.peak < served.frames + kBytes / 100);
    CHECK(copied.peak >= copied.frames + kBytes);
  };
  check("aten::gelu", {}, at::gelu(x));
  check("aten::_softmax", {{"dim", int64_t{1}}, {"half_to_float", false}}, at::softmax(x, 1));
  check("aten::cumsum", {{"dim", int64_t{0}}}, at::cumsum(x, 0));
}

}  // namespace
}  // namespace perigee::exec
