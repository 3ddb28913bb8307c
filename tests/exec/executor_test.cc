#include "exec/executor.h"

#include "exec/comm/threads.h"
#include "exec/connect_groups.h"
#include "exec/kernels/kernels.h"
#include "exec/memory/allocator.h"
#include "tests/exec/builder.h"
#include "tests/exec/processes.h"
#include "tests/exec/support.h"
#include "tests/support/test_device.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

using compile::Binding;
using graph::DType;
using Kind = Binding::Kind;

const mesh::Mesh kOne{.axes = {{"data", 1}}};

at::Tensor batch(int64_t microbatch, std::vector<int64_t> shape) {
  int64_t n = 1;
  for (auto s : shape) n *= s;
  return ((at::arange(n, at::kDouble) * (3 + microbatch)) % 17 / 17).view(shape);
}

// loss = sum(gelu(layer_norm(x) w)), d w, and w -= lr d w; with dropout, a temporary allocation
// and views.
compile::Program training(int64_t rank, int64_t ranks, int64_t microbatches, int64_t rows = 4) {
  Builder b;
  const auto w = b.bind(Kind::parameter, "w", f64({8, 6}));
  const auto gradient = b.bind(Kind::state, "gradient", f64({8, 6}));
  const auto total = b.bind(Kind::result, "loss", f64({}));
  const auto lr = b.bind(Kind::scalar, "lr.0", f64({}));
  const auto step = b.bind(Kind::scalar, "step", f64({}));
  const auto x = b.load("x", f64({rows, 8}), 3);
  b.program.bindings.back().shape = {rows * ranks, 8};
  b.program.bindings.back().ranges = {{rank * rows, rows}, {0, 8}};
  const auto normed = b.op(
      "aten::native_layer_norm",
      {{"input", x}, {"normalized_shape", std::vector<int64_t>{8}}, {"eps", 1e-5}},
      {f64({rows, 8}), f64({rows, 1}), f64({rows, 1})}, 3)[0];
  const auto dropped = b.op("perigee::dropout",
                            {{"self", normed},
                             {"p", 0.25},
                             {"key", int64_t{3}},
                             {"global", std::vector<int64_t>{rows * ranks, 8}},
                             {"begin", std::vector<int64_t>{rank * rows, 0}}},
                            {f64({rows, 8})}, 3)[0];
  b.scope = "head";
  const auto y = b.op("aten::mm", {{"self", dropped}, {"mat2", w}}, {f64({rows, 6})})[0];
  const auto z = b.op("aten::gelu", {{"self", y}}, {f64({rows, 6})})[0];
  const auto loss = b.op("aten::sum", {{"self", z}}, {f64({})}, 2)[0];
  const auto ones = b.op("perigee::full", {{"value", 1.0}}, {f64({rows, 6})})[0];
  const auto dy = b.op("aten::gelu_backward", {{"grad_output", ones}, {"self", y}},
                       {f64({rows, 6})})[0];
  // x^T is a view: an address and strides.
  b.program.values.push_back(
      {f64({8, rows}), {1, 8}, b.program.values[dropped.index].place, dropped, "x^T"});
  const graph::ValueId transposed{static_cast<int32_t>(b.program.values.size()) - 1};
  const auto dw = b.op("aten::mm", {{"self", transposed}, {"mat2", dy}}, {f64({8, 6})}, 2)[0];
  const auto reduced = b.value(f64({8, 6}), "reduced", 2);
  const auto event = b.all_reduce(dw, reduced);
  const auto loss_event = b.all_reduce(loss, loss);
  b.wait(event);
  b.in_place("perigee::accumulate_", {{"self", gradient}, {"other", reduced}}, {gradient});
  b.wait(loss_event);
  b.in_place("perigee::accumulate_", {{"self", total}, {"other", loss}}, {total});
  b.section(compile::SectionKind::step);
  b.scope = "";
  b.in_place("perigee::sgd_", {{"self", w}, {"gradient", gradient}, {"lr", lr}, {"step", step}},
             {w});
  return b.finish(rank, microbatches);
}

// Returns loss and weights after one step on microbatches of `rows` samples.
std::pair<double, at::Tensor> train(Communicator& communicator, const mesh::Mesh& mesh,
                                    int64_t microbatches, int64_t rows) {
  const TestRank on(communicator);
  Executor executor(training(communicator.rank(), communicator.world(), microbatches,
                             rows / communicator.world()),
                    *on.communicator, mesh, {.seed = 7, .device = on.device});
  executor.tensor(Kind::parameter, "w").copy_(batch(5, {8, 6}));
  executor.run({.step = 1, .scalars = {{"lr.0", 0.1}}, .data = [&](const std::string&, int64_t m) {
                  return batch(0, {rows * microbatches, 8}).narrow(0, m * rows, rows);
                }});
  return {executor.tensor(Kind::result, "loss").item<double>(),
          executor.tensor(Kind::parameter, "w").to(at::kCPU, false, /*copy=*/true)};
}

// The CPU with the properties of a GPU: kernels allocate freely, and a step ends with a wait.
class FreeDevice : public Device {
 public:
  at::Device place() const override { return at::kCPU; }
  Kernel kernel(const Op& op) override { return cpu_->kernel(op); }
  std::shared_ptr<std::byte> allocate(int64_t bytes, bool communicates) override {
    communication_bytes += communicates ? bytes : 0;
    return cpu_->allocate(bytes, communicates);
  }
  std::shared_ptr<std::byte> allocate_host(int64_t bytes) override {
    return cpu_->allocate_host(bytes);
  }
  std::shared_ptr<Work> copy(const at::Tensor& to, const at::Tensor& from, bool to_host) override {
    return cpu_->copy(to, from, to_host);
  }
  std::string kind() const override { return "free"; }
  bool plans_memory() const override { return false; }
  std::optional<compile::OpTrace> dry_run(const compile::OpInstance& instance) override {
    return cpu_->dry_run(instance);
  }
  void reset_peak() override { cpu_->reset_peak(); }
  int64_t peak() const override { return cpu_->peak(); }
  std::shared_ptr<void> enter() override {
    ++entered;
    return std::shared_ptr<void>(this, [](FreeDevice* device) { --device->entered; });
  }
  void upload(const at::Tensor& target, const at::Tensor& source) override {
    target.copy_(source);
    ++uploads;
  }
  void synchronize(const std::function<void()>& check) override {
    check();
    if (!fault.empty()) throw std::runtime_error(fault);
  }
  // Marks are converted to times on request.
  int64_t mark() override { return marks++; }
  int64_t time(int64_t mark) override { return 1000 + 10 * mark; }

  int entered = 0, uploads = 0;
  int64_t marks = 0, communication_bytes = 0;
  std::string fault;

 private:
  std::shared_ptr<Device> cpu_ = cpu_device();
};

TEST_CASE("a device without planned memory gives the same step, and converts its marks to times") {
  const auto communicator = single_communicator();
  const auto device = std::make_shared<FreeDevice>();
  const auto step = [&](std::shared_ptr<Device> on) {
    Executor executor(training(0, 1, 2), *communicator, kOne, {.seed = 7, .device = std::move(on)});
    executor.tensor(Kind::parameter, "w").copy_(batch(5, {8, 6}));
    executor.record(true);
    for (int64_t s = 1; s <= 2; ++s) {
      executor.run(
          {.step = s, .scalars = {{"lr.0", 0.1}}, .data = [&](const std::string&, int64_t m) {
             return batch(m, {4, 8});
           }});
    }
    for (const auto& interval : executor.intervals()) {
      REQUIRE(interval.begin > 0);
      REQUIRE(interval.begin <= interval.end);
    }
    return std::pair{executor.tensor(Kind::parameter, "w").clone(), executor.intervals().size()};
  };
  const auto [expected, intervals] = step(nullptr);
  const auto [w, same_intervals] = step(device);
  REQUIRE(at::equal(w, expected));
  REQUIRE(same_intervals == intervals);
  REQUIRE(device->uploads == 4);
  REQUIRE(device->entered == 0);
  REQUIRE(device->marks > 0);

  // An error that a kernel reports at the end of the step is the rank's failure.
  device->fault = "a label is no class";
  REQUIRE_THROWS_WITH(step(device), Catch::Contains("a label is no class"));
}

TEST_CASE(
    "a planned program serves every allocation from its frames and equals eager ops bit by bit") {
  const auto communicator = single_communicator();
  Executor executor(training(0, 1, 1), *communicator, kOne, {.seed = 7});
  REQUIRE(executor.frame_bytes() == executor.program().peak_bytes);
  auto w = executor.tensor(Kind::parameter, "w");
  w.copy_(batch(5, {8, 6}));
  const auto start = w.clone();
  const auto x = batch(0, {4, 8});
  const StepInputs inputs{.step = 1,
                          .scalars = {{"lr.0", 0.1}},
                          .data = [&](const std::string&, int64_t) { return x; }};
  reset_peak();
  const auto before = memory_count();
  executor.run(inputs);
  const auto after = memory_count();
  REQUIRE(after.others == before.others);
  REQUIRE(after.peak == before.arenas + before.others);

  const auto normed = call(cpu_kernel, "aten::native_layer_norm", {{"input", x}},
                           {{"normalized_shape", std::vector<int64_t>{8}}, {"eps", 1e-5}},
                           {f64({4, 8})})[0];
  const auto dropped = call(cpu_kernel, "perigee::dropout", {{"self", normed}},
                            {{"p", 0.25}, {"key", int64_t{3}}}, {f64({4, 8})},
                            {.seed = 7, .step = 1})[0];
  const auto y = dropped.mm(start);
  const auto dw = dropped.t().mm(at::gelu_backward(at::ones({4, 6}, at::kDouble), y));
  REQUIRE(at::equal(executor.tensor(Kind::result, "loss"), at::gelu(y).sum()));
  REQUIRE(at::allclose(w, start - 0.1 * dw, 1e-15, 1e-15));
}

TEST_CASE(
    "ranks as threads and microbatches equal one rank, and without the reduction they do "
    "not",
    "[device]") {
  const auto [loss, weights] = train(*single_communicator(), kOne, 1, 16);
  for (int64_t ranks : {1, 2, 4}) {
    for (int64_t microbatches : {1, 2, 4}) {
      run_ranks(ranks,
                [&, loss = loss, weights = weights](Communicator& c) {
                  const auto [l, w] = train(c, {.axes = {{"data", c.world()}}}, microbatches,
                                            16 / microbatches);
                  must(std::abs(l - loss) < 1e-10, "loss");
                  must(at::allclose(w, weights, 1e-12, 1e-12), "weights");
                },
                {.timeout = std::chrono::seconds(30)});
    }
  }
  run_ranks(2, [&, loss = loss](Communicator& c) {
    auto program = training(c.rank(), 2, 1, 8);
    for (auto& instruction : program.sections[0].instructions) {
      if (instruction.op == "comm::all_reduce") instruction.args.back().second = std::string("max");
    }
    Executor executor(program, c, {.axes = {{"data", 2}}}, {.seed = 7});
    executor.tensor(Kind::parameter, "w").copy_(batch(5, {8, 6}));
    executor.run({.step = 1, .scalars = {{"lr.0", 0.1}}, .data = [&](const std::string&, int64_t) {
                    return batch(0, {16, 8});
                  }});
    must(std::abs(executor.tensor(Kind::result, "loss").item<double>() - loss) > 1e-3,
         "negative control");
  });
}

TEST_CASE("an allocation that does not fit the plan names the op and its scope") {
  const auto communicator = single_communicator();
  auto program = training(0, 1, 1);
  const std::string planned = GENERATE("8 bytes more", "one more", "one less");
  for (auto& instruction : program.sections[0].instructions) {
    if (instruction.op != "aten::gelu") continue;
    auto& allocations = instruction.allocations;
    if (planned == "8 bytes more") allocations[0].bytes += 8;
    if (planned == "one more") allocations.push_back(allocations[0]);
    if (planned == "one less") allocations.pop_back();
  }
  Executor executor(program, *communicator, kOne);
  const StepInputs inputs{.scalars = {{"lr.0", 0.1}}, .data = [](const std::string&, int64_t) {
                            return batch(0, {4, 8});
                          }};
  const std::string wrong = planned == "8 bytes more" ? "of the op must have "
                            : planned == "one more"   ? "recorded, but made "
                                                      : "recorded, but makes one more of ";
  CAPTURE(planned);
  REQUIRE_THROWS_WITH(executor.run(inputs), Catch::Contains("aten::gelu in scope \"head\"") &&
                                                Catch::Contains("when its trace was recorded") &&
                                                Catch::Contains(wrong));
}

TEST_CASE("a result with another layout or address than declared is an error") {
  const auto communicator = single_communicator();
  auto program = training(0, 1, 1);
  const bool layout = GENERATE(true, false);
  for (auto& instruction : program.sections[0].instructions) {
    if (instruction.op != "aten::gelu") continue;
    auto& value = program.values[instruction.outputs[0].index];
    if (layout) {
      value.strides = {1, 4};
    } else {
      value.place.offset += 64;
    }
  }
  Executor executor(program, *communicator, kOne);
  const StepInputs inputs{.scalars = {{"lr.0", 0.1}}, .data = [](const std::string&, int64_t) {
                            return batch(0, {4, 8});
                          }};
  REQUIRE_THROWS_WITH(
      executor.run(inputs),
      Catch::Contains("aten::gelu") && Catch::Contains(layout ? "strides [1, 4]" : "elsewhere"));
}

TEST_CASE("an op without a trace allocates freely and its result is copied to its place") {
  const auto communicator = single_communicator();
  auto program = training(0, 1, 1);
  for (auto& instruction : program.sections[0].instructions) {
    if (instruction.in_place) continue;
    instruction.traced = false;
    instruction.allocations.clear();
  }
  const auto expected = train(*communicator, kOne, 1, 4);
  Executor executor(program, *communicator, kOne, {.seed = 7});
  executor.tensor(Kind::parameter, "w").copy_(batch(5, {8, 6}));
  executor.run({.step = 1, .scalars = {{"lr.0", 0.1}}, .data = [](const std::string&, int64_t) {
                  return batch(0, {4, 8});
                }});
  REQUIRE(executor.tensor(Kind::result, "loss").item<double>() == expected.first);
  REQUIRE(at::equal(executor.tensor(Kind::parameter, "w"), expected.second));
}

TEST_CASE("inputs that are missing or of the wrong type are errors that name them") {
  const auto communicator = single_communicator();
  Executor executor(training(0, 1, 1), *communicator, kOne);
  const auto data = [](const std::string&, int64_t) { return batch(0, {4, 8}); };
  REQUIRE_THROWS_WITH(executor.run({.data = data}), Catch::Contains("lr.0"));
  REQUIRE_THROWS_WITH(executor.run({.scalars = {{"lr.0", 1}}}), Catch::Contains("\"x\""));
  REQUIRE_THROWS_WITH(executor.run({.scalars = {{"lr.0", 1}},
                                    .data =
                                        [](const std::string&, int64_t) {
                                          return at::ones({4, 9}, at::kDouble);
                                        }}),
                      Catch::Contains("Double[4, 9]"));
  REQUIRE_THROWS_WITH(executor.tensor(Kind::state, "gradiant"),
                      Catch::Contains("did you mean \"gradient\""));
}

TEST_CASE("a tensor of a program outlives its executor") {
  at::Tensor w;
  {
    const auto communicator = single_communicator();
    Executor executor(training(0, 1, 1), *communicator, kOne);
    w = executor.tensor(Kind::parameter, "w");
    w.fill_(3);
  }
  REQUIRE(at::equal(w, at::full({8, 6}, 3.0, at::kDouble)));
}

TEST_CASE("a failing rank ends the others with its reason") {
  const auto body = [](Communicator& c) {
    auto program = training(c.rank(), 2, 1, 2);
    if (c.rank() == 1) program.sections[0].instructions[3].allocations[0].bytes += 8;
    Executor executor(program, c, {.axes = {{"data", 2}}});
    executor.run({.scalars = {{"lr.0", 0.1}}, .data = [](const std::string&, int64_t) {
                    return batch(0, {4, 8});
                  }});
  };
  REQUIRE_THROWS_WITH(run_ranks(2, body, {.timeout = std::chrono::seconds(30)}),
                      Catch::Contains("rank 1: aten::mm in scope \"head\""));
}

TEST_CASE("over Gloo, collectives overlap with ops, and the result equals that of one process") {
  const auto errors = fork_ranks(
      2,
      [](Communicator& c) {
        Builder b;
        const auto a = b.bind(Kind::parameter, "a", f32({600, 600}));
        const auto out = b.bind(Kind::result, "out", f32({1 << 20}));
        const auto in = b.value(f32({1 << 20}), "in", 2);
        b.in_place("perigee::copy_", {{"self", in}, {"source", out}}, {in});
        const auto event = b.all_reduce(in, out);
        for (int i = 0; i < 8; ++i) b.op("aten::mm", {{"self", a}, {"mat2", a}}, {f32({600, 600})});
        b.wait(event);
        Executor executor(b.finish(c.rank()), c, {.axes = {{"data", 2}}});
        executor.tensor(Kind::result, "out").fill_(static_cast<double>(c.rank() + 1));
        executor.record(true);
        executor.run({});
        must(executor.tensor(Kind::result, "out").eq(3).all().item<bool>(), "sum");
        must(overlap(executor.intervals()) > 0, "overlap");
        const auto trace = compile::chrome_trace(executor.intervals(), c.rank(),
                                                 executor.program().streams);
        must(trace.find("\"comm::all_reduce\"") != std::string::npos &&
                 trace.find("\"aten::mm\"") != std::string::npos,
             "trace");
      },
      std::chrono::seconds(20), Carrier::gloo);
  for (const auto& error : errors) REQUIRE(error == "");
}

// Takes the memory that a program registers.
class RegisteringGroup : public Group {
 public:
  RegisteringGroup(const std::string& name, const std::vector<int64_t>& ranks)
      : Group(name, ranks, 0) {}
  std::shared_ptr<void> register_memory(CollectiveMemory memory) override {
    seen = std::move(memory);
    return seen.memory;
  }
  std::shared_ptr<Work> transfer(Transfer) override { return nullptr; }

  CollectiveMemory seen;
};

class RegisteringCommunicator : public Communicator {
 public:
  int64_t rank() const override { return 0; }
  int64_t world() const override { return 2; }
  std::shared_ptr<Group> group(const std::string& name,
                               const std::vector<int64_t>& ranks) override {
    if (!made) made = std::make_shared<RegisteringGroup>(name, ranks);
    return made;
  }
  void abort(const std::string&) override {}

  std::shared_ptr<RegisteringGroup> made;
};

// Returns the memory that a program registers which reduces a value of `frame` for two microbatches,
// in those slots; each slot has a copy of the frame.
CollectiveMemory registered(std::vector<int32_t> slots, int32_t frame = 2, bool other = false) {
  Builder b;
  if (other) b.place(2, 64);  // of another value
  const auto value = b.value(f32({32}), "value", frame);
  b.wait(b.all_reduce(value, value));
  b.program.frames[2].bytes = 256;
  b.program.frames[2].copies = 2;
  b.program.slots = {{0, 0, 0, 0}, {0, 0, 1, 0}};
  auto program = b.finish(0, 2);
  for (size_t m = 0; m < 2; ++m) program.order[m].slot = slots[m];
  const Arena arena(program.frames, *cpu_device());
  RegisteringCommunicator communicator;
  const auto registrations = register_memory(program, communicator, {.axes = {{"data", 2}}}, arena);
  must(registrations.size() == 1 && registrations[0] == arena.communication(), "registrations");
  return communicator.made->seen;
}

TEST_CASE("memory of collectives is registered with the offsets in each copy of its frames") {
  const auto memory = registered({0, 1});
  CHECK(memory.bytes == 512);
  CHECK(memory.layout != "");
  CHECK(registered({0, 1}).layout == memory.layout);
  CHECK(registered({1, 0}).layout != memory.layout);
  CHECK(registered({0, 0}).layout != memory.layout);
  CHECK(registered({0, 1}, 2, true).layout != memory.layout);
  CHECK(registered({0, 1}, /*scratch*/ 1).layout == "");
}

}  // namespace
}  // namespace perigee::exec
