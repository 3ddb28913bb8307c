// Planned addresses on a device whose kernels may allocate otherwise than planned, as on a GPU.
#include "exec/memory/served_allocations.h"

#include <array>

#include "exec/executor.h"
#include "tests/exec/builder.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

using compile::Allocation;
using Kind = compile::Binding::Kind;

const mesh::Mesh kOneDevice{.axes = {{"data", 1}}};
constexpr int64_t kRows = 3, kColumns = 4;
constexpr int64_t kBytes = kRows * kColumns * 8;
const graph::TensorType kType{graph::DType::float64, {kRows, kColumns}};

TEST_CASE("planned allocations are served once in a run, by their bytes and in their order") {
  alignas(64) std::array<std::byte, 1024> frame;
  const std::vector<std::byte*> bases = {frame.data()};
  ServedAllocations served(std::vector<Allocation>{{64, {0, 0}}, {128, {0, 64}}, {64, {0, 256}}},
                           bases);
  CHECK(served.serve(64) == nullptr);  // no run has begun
  served.start();
  CHECK(served.serve(96) == nullptr);
  CHECK(served.serve(128) == frame.data() + 64);
  CHECK(served.serve(64) == frame.data());
  CHECK(served.serve(64) == frame.data() + 256);
  CHECK(served.serve(64) == nullptr);
  CHECK(served.in_use() == 256);
  CHECK(served.holds(frame.data() + 191));
  CHECK_FALSE(served.holds(frame.data() + 192));
  CHECK(served.free(frame.data() + 64));
  CHECK_FALSE(served.free(frame.data() + 64));
  CHECK_FALSE(served.holds(frame.data() + 64));
  CHECK(served.serve(128) == nullptr);
  served.start();
  CHECK(served.in_use() == 0);
  served.stop();
  CHECK(served.serve(64) == nullptr);
}

TEST_CASE("an allocation is not served where another one is in use") {
  alignas(64) std::array<std::byte, 256> frame;
  const std::vector<std::byte*> bases = {frame.data()};
  // The second one reuses the memory of the first one, which is freed before.
  ServedAllocations served(std::vector<Allocation>{{64, {0, 0}}, {128, {0, 0}}}, bases);
  served.start();
  CHECK(served.serve(64) == frame.data());
  CHECK(served.serve(128) == nullptr);
  CHECK(served.free(frame.data()));
  CHECK(served.serve(128) == frame.data());
  served.start();
  CHECK(served.serve(128) == frame.data());
  CHECK(served.serve(64) == nullptr);
}

TEST_CASE("a trace keeps results that are allocations of their own, and lists others for copies") {
  const at::Tensor operand = at::ones({kRows, kColumns}, at::kDouble);
  using Strides = std::vector<int64_t>;
  const auto trace_of = [&](const std::function<std::vector<at::Tensor>()>& op) {
    RecordedAllocations recorded;
    const auto results = op();
    compile::OpInstance instance;
    instance.outputs.assign(results.size(), kType);
    return trace_with_copies(instance, results, recorded.entries());
  };
  const auto empty = [](Strides strides) {
    return at::empty_strided({kRows, kColumns}, strides, at::kDouble);
  };
  const Strides rows = {kColumns, 1}, columns = {1, kRows};

  auto trace = trace_of([&] {
    static_cast<void>(at::empty({5}, at::kDouble));
    const auto second = empty(columns), first = empty(rows);
    return std::vector{first, second};
  });
  CHECK(trace.allocations == Strides{40, kBytes, kBytes});
  CHECK(trace.freed_before == std::vector<std::vector<int32_t>>{{}, {0}, {0}});
  CHECK(trace.output_allocation == std::vector<int32_t>{2, 1});
  CHECK(trace.output_strides == std::vector<Strides>{rows, columns});
  CHECK(trace.complete);

  trace = trace_of([&] { return std::vector{operand, empty(rows)}; });
  CHECK(trace.allocations == Strides{kBytes, kBytes});
  CHECK(trace.output_allocation == std::vector<int32_t>{1, 0});

  trace = trace_of([&] {  // two results in one allocation, of another size
    const auto both = at::empty({2, kRows, kColumns}, at::kDouble);
    return std::vector{both[0], both[1]};
  });
  CHECK(trace.allocations == Strides{2 * kBytes, kBytes, kBytes});
  CHECK(trace.output_allocation == std::vector<int32_t>{1, 2});

  // Gaps of an eighth of the result are its own; a result with larger ones is copied.
  trace = trace_of([&] { return std::vector{empty({2 * kColumns, 1})}; });
  CHECK(trace.allocations.size() == 2);
  CHECK(trace.output_allocation == std::vector<int32_t>{1});
  CHECK(trace.output_strides == std::vector<Strides>{rows});
  trace = trace_of([&] {
    const auto all = at::empty({kRows * kColumns + 1}, at::kDouble);
    return std::vector{all.as_strided({kRows, kColumns}, rows)};
  });
  CHECK(trace.allocations == Strides{kBytes + 8});
  CHECK(trace.output_allocation == std::vector<int32_t>{0});
  trace = trace_of([&] {  // the same element twice
    return std::vector{at::empty({kColumns}, at::kDouble).expand({kRows, kColumns})};
  });
  CHECK(trace.output_allocation == std::vector<int32_t>{1});

  trace = trace_of([&] {
    const auto result = empty(rows);
    return std::vector{result, result};
  });
  CHECK(trace.allocations == Strides{kBytes, kBytes});
  CHECK(trace.output_allocation == std::vector<int32_t>{0, 1});
}

// The CPU as a device without planned memory. Ops named "test::..." run the test's function.
class ServingDevice : public Device {
 public:
  using Run = std::function<void(ServingDevice&, const at::Tensor& x, std::span<at::Tensor> out)>;
  ServingDevice(Run run, bool serves) : run_(std::move(run)), serves_(serves) {}

  // Allocates as a GPU's allocator does.
  at::Tensor empty(std::vector<int64_t> shape) {
    const auto strides = contiguous_strides(shape);
    return empty_strided(std::move(shape), strides);
  }
  at::Tensor empty_strided(std::vector<int64_t> shape, const std::vector<int64_t>& strides) {
    int64_t bytes = 8;
    for (const auto size : shape) bytes *= size;
    void* address = state->allocations ? state->allocations->serve(bytes) : nullptr;
    if (!address) return at::empty_strided(shape, strides, at::kDouble);
    ++state->served;
    return at::from_blob(
        address, shape, strides,
        [state = state](void* p) {
          state->freed += state->allocations && state->allocations->free(p) ? 1 : 0;
        },
        at::kDouble);
  }

  struct State {
    ServedAllocations* allocations = nullptr;
    int served = 0, freed = 0;
  };
  std::shared_ptr<State> state = std::make_shared<State>();

  void serve(ServedAllocations* allocations) override {
    if (serves_) state->allocations = allocations;
  }
  Kernel kernel(const Op& op) override {
    if (!op.name.starts_with("test::")) return cpu_->kernel(op);
    return [this](std::span<const at::Tensor> operands, std::span<at::Tensor> results,
                  const Draw&) { run_(*this, operands[0], results); };
  }
  at::Device place() const override { return at::kCPU; }
  std::shared_ptr<std::byte> allocate(int64_t bytes, bool communicates) override {
    return cpu_->allocate(bytes, communicates);
  }
  std::shared_ptr<std::byte> allocate_host(int64_t bytes) override {
    return cpu_->allocate_host(bytes);
  }
  std::shared_ptr<Work> copy(const at::Tensor& to, const at::Tensor& from, bool to_host) override {
    return cpu_->copy(to, from, to_host);
  }
  std::string kind() const override { return "serving"; }
  bool plans_memory() const override { return false; }
  std::optional<compile::OpTrace> dry_run(const compile::OpInstance&) override { return {}; }
  void reset_peak() override {}
  int64_t peak() const override { return 0; }
  std::shared_ptr<void> enter() override { return nullptr; }
  void upload(const at::Tensor& target, const at::Tensor& source) override { target.copy_(source); }
  void synchronize(const std::function<void()>&) override {}
  int64_t mark() override { return now(); }
  int64_t time(int64_t mark) override { return mark; }

 private:
  Run run_;
  bool serves_;
  std::shared_ptr<Device> cpu_ = cpu_device();
};

struct Outcome {
  at::Tensor first, second;  // copies of the results
  bool first_in_place = false, second_in_place = false;
  int served = 0, freed = 0;
};

const at::Tensor kX = at::arange(kRows * kColumns, at::kDouble).view({kRows, kColumns});

// Runs, for two steps, an op with two results; `temporaries`: bytes of further planned allocations.
Outcome run(ServingDevice::Run op, bool serves = true,
            const std::vector<int64_t>& temporaries = {}) {
  Builder b;
  const auto x = b.load("x", kType);
  const auto first = b.bind(Kind::result, "first", kType);
  const auto second = b.bind(Kind::result, "second", kType);
  compile::Instruction instruction{
      .op = "test::two", .args = {{"self", x}}, .outputs = {first, second}, .traced = true};
  for (const auto bytes : temporaries) {
    instruction.allocations.push_back({bytes, b.place(1, bytes)});
  }
  for (const auto v : instruction.outputs) {
    instruction.allocations.push_back({kBytes, b.program.values[v.index].place});
  }
  b.add(instruction);
  std::array<const void*, 2> given{};
  const auto device = std::make_shared<ServingDevice>(
      [&](ServingDevice& on, const at::Tensor& operand, std::span<at::Tensor> results) {
        op(on, operand, results);
        for (size_t i = 0; i < 2; ++i) given[i] = results[i].const_data_ptr();
      },
      serves);
  const auto communicator = single_communicator();
  Executor executor(b.finish(0, 1), *communicator, kOneDevice, {.device = device});
  for (int64_t step = 1; step <= 2; ++step) {
    executor.run({.step = step, .data = [](const std::string&, int64_t) { return kX; }});
  }
  const auto a = executor.tensor(Kind::result, "first"),
             c = executor.tensor(Kind::result, "second");
  return {a.clone(),
          c.clone(),
          given[0] == a.const_data_ptr(),
          given[1] == c.const_data_ptr(),
          device->state->served,
          device->state->freed};
}

void make_both(ServingDevice& on, const at::Tensor& x, std::span<at::Tensor> results) {
  results[0] = on.empty({kRows, kColumns}).copy_(x);
  results[1] = on.empty({kRows, kColumns}).copy_(x * 2);
}

bool right(const Outcome& outcome) {
  return at::equal(outcome.first, kX) && at::equal(outcome.second, kX * 2);
}

TEST_CASE("results are made at their planned addresses, in every step") {
  const auto outcome = run(make_both);
  CHECK(right(outcome));
  CHECK(outcome.first_in_place);
  CHECK(outcome.second_in_place);
  CHECK(outcome.served == 4);
  CHECK(outcome.freed == 4);
}

TEST_CASE("results on a device that does not serve them are copied to their addresses") {
  const auto outcome = run(make_both, /*serves=*/false);
  CHECK(right(outcome));
  CHECK_FALSE(outcome.first_in_place);
  CHECK_FALSE(outcome.second_in_place);
}

TEST_CASE("results that take each other's addresses are put in order") {
  const auto outcome = run([](auto& on, const at::Tensor& x, auto results) {
    results[1] = on.empty({kRows, kColumns}).copy_(x * 2);
    results[0] = on.empty({kRows, kColumns}).copy_(x);
  });
  CHECK(right(outcome));
  CHECK_FALSE(outcome.first_in_place);
  CHECK(outcome.served == 4);
}

TEST_CASE("results are right where a temporary takes the address of one") {
  const auto unplanned = [](auto& on, const at::Tensor& x, auto results) {
    const auto temporary = on.empty({kRows, kColumns}).copy_(x * 3);
    results[0] = on.empty({kRows, kColumns}).copy_(temporary / 3);
    results[1] = on.empty({kRows, kColumns}).copy_(temporary / 3 * 2);
  };
  const auto outcome = run(unplanned);
  CHECK(at::allclose(outcome.first, kX));
  CHECK(at::allclose(outcome.second, kX * 2));
  CHECK_FALSE(outcome.second_in_place);
  // A planned one is served at an address of its own.
  const auto planned = run(unplanned, true, {kBytes});
  CHECK(planned.first_in_place);
  CHECK(planned.second_in_place);
  CHECK(planned.served == 6);
}

TEST_CASE("allocations of other sizes are not served") {
  const auto outcome = run([](auto& on, const at::Tensor& x, auto results) {
    const auto temporary = on.empty({kRows, kColumns + 1}).fill_(7);
    make_both(on, x, results);
  });
  CHECK(right(outcome));
  CHECK(outcome.first_in_place);
  CHECK(outcome.served == 4);
}

TEST_CASE("a result in another layout than planned is copied, also at its own address") {
  const auto outcome = run([](auto& on, const at::Tensor& x, auto results) {
    results[0] = on.empty_strided({kRows, kColumns}, {1, kRows}).copy_(x);
    results[1] = on.empty({kRows, kColumns}).copy_(x * 2);
  });
  CHECK(right(outcome));
  CHECK(outcome.second_in_place);
}

TEST_CASE("a result that is an operand is copied") {
  const auto outcome = run([](auto& on, const at::Tensor& x, auto results) {
    results[0] = x;
    results[1] = on.empty({kRows, kColumns}).copy_(x * 2);
  });
  CHECK(right(outcome));
  CHECK_FALSE(outcome.first_in_place);
}

TEST_CASE("an op that keeps memory at a planned address is an error") {
  at::Tensor kept;
  CHECK_THROWS_WITH(run([&](auto& on, const at::Tensor& x, auto results) {
                      kept = on.empty({kRows, kColumns});
                      make_both(on, x, results);
                    }),
                    Catch::Contains("test::two") &&
                        Catch::Contains("must free its allocations before it ends, but keeps 96"));
}

}  // namespace
}  // namespace perigee::exec
