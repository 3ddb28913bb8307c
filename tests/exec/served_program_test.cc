// A compiled program on the CPU as a device without planned memory, whose allocator serves planned
// addresses as a GPU's does.
#include <c10/core/CPUAllocator.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "capture/capture.h"
#include "compile/compile.h"
#include "exec/executor.h"
#include "exec/memory/allocator.h"
#include "exec/memory/served_allocations.h"
#include "profile/traces.h"
#include "tests/support/database_file.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

using Kind = compile::Binding::Kind;
namespace nn = torch::nn;

constexpr int64_t kServedRows = 6, kWidth = 16;

thread_local ServedAllocations* serving = nullptr;
thread_local int served = 0;
c10::Allocator* planned_allocator = nullptr;

void release_served(void* address) {
  if (serving) serving->free(address);
}
void release_any(void* address) {
  if (serving && serving->free(address)) return;
  planned_allocator->raw_deleter()(address);
}

// Over LibTorch's CPU allocator, as src/cuda's is over that of a GPU.
class ServingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* address = serving && bytes > 0 ? serving->serve(static_cast<int64_t>(bytes)) : nullptr;
    if (!address) return planned_allocator->allocate(bytes);
    ++served;
    return {address, address, &release_served, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_any; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

void install() {
  static const bool done = [] {
    install_allocator();
    planned_allocator = c10::GetCPUAllocator();
    c10::SetCPUAllocator(new ServingAllocator, /*priority=*/100);
    return true;
  }();
  static_cast<void>(done);
}

// Which ops first allocate as many bytes as each of their results has, fill them with NaN, and keep
// them until they end: an op that allocates more than its trace.
enum class Disturbed { none, elsewhere, in_place };

class ServingCpu : public Device {
 public:
  explicit ServingCpu(Disturbed disturbed) : disturbed_(disturbed) {}

  void serve(ServedAllocations* allocations) override { serving = allocations; }
  Kernel kernel(const Op& op) override {
    const auto kernel = cpu_->kernel(op);
    return [=, this](std::span<const at::Tensor> operands, std::span<at::Tensor> results,
                     const Draw& draw) {
      std::vector<at::Tensor> kept;
      const auto bytes_of = [](const at::Tensor& t) { return static_cast<int64_t>(t.nbytes()); };
      for (const auto& type : op.outputs) {
        if (!type || disturbed_ == Disturbed::none) continue;
        auto extra = at::empty({type->bytes()}, at::kByte);
        const auto* at = static_cast<const std::byte*>(extra.const_data_ptr());
        const bool over_operand = std::any_of(
            operands.begin(), operands.end(), [&](const at::Tensor& operand) {
              const auto* begin = static_cast<const std::byte*>(operand.const_data_ptr());
              return at < begin + bytes_of(operand) && begin < at + bytes_of(extra);
            });
        ops_over_operands += over_operand;
        if (over_operand == (disturbed_ == Disturbed::in_place)) {
          extra.fill_(0xff);
          kept.push_back(extra);
        }
      }
      kernel(operands, results, draw);
    };
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
  std::string kind() const override { return "serving cpu"; }
  bool plans_memory() const override { return false; }
  std::optional<compile::OpTrace> dry_run(const compile::OpInstance& instance) override {
    return cpu_->dry_run(instance);
  }
  void reset_peak() override { cpu_->reset_peak(); }
  int64_t peak() const override { return cpu_->peak(); }
  std::shared_ptr<void> enter() override { return nullptr; }
  void upload(const at::Tensor& target, const at::Tensor& source) override { target.copy_(source); }
  void synchronize(const std::function<void()>&) override {}
  int64_t mark() override { return now(); }
  int64_t time(int64_t mark) override { return mark; }

  int ops_over_operands = 0;

 private:
  Disturbed disturbed_;
  std::shared_ptr<Device> cpu_ = cpu_device();
};

struct Net : nn::Module {
  nn::LayerNorm norm{nn::LayerNormOptions({kWidth})};
  nn::Linear up{kWidth, 3 * kWidth}, down{3 * kWidth, kWidth};
  Net() {
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
    to(at::kDouble);
  }
  at::Tensor loss(const Batch& batch) {
    const auto x = batch.at("x");
    const auto y = x + down(torch::gelu(up(norm(x)) * 1.5 + 0.25));
    return at::mse_loss(at::softmax(y, 1), batch.at("y"));
  }
};

struct ServedOutcome {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> weights;
  int64_t peak = 0, frames = 0;
};

class Trained {
 public:
  Trained() {
    install();
    at::manual_seed(6);
    net_ = std::make_shared<Net>();
    batch_ = {{"x", at::randn({kServedRows, kWidth}, at::kDouble)},
              {"y", at::rand({kServedRows, kWidth}, at::kDouble)}};
    const auto graph = capture(*net_, batch_, [&](const Batch& b) {
                         return Result{net_->loss(b)};
                       }).graph;
    plan_.graph_hash = graph::structural_hash(graph);
    plan_.mesh = {.axes = {{"data", 1}}};
    DatabaseFile file{"served"};
    profile::Database database{file.path};
    profile::TraceDatabase traces{database};
    program_ = compile::compile(
        graph, plan_, {.optimizer = "adamw", .weight_decay = 0.1, .clip_norm = 0.5}, 0, traces);
  }

  // Returns the outcome of three steps on the device.
  ServedOutcome run(std::shared_ptr<Device> device) const {
    const auto communicator = single_communicator();
    Executor executor(program_, *communicator, plan_.mesh, {.seed = 9, .device = device});
    for (const auto& parameter : net_->named_parameters()) {
      executor.tensor(Kind::parameter, parameter.key()).copy_(parameter.value().detach());
    }
    ServedOutcome outcome{.frames = executor.frame_bytes()};
    for (int64_t step = 1; step <= 3; ++step) {
      device->reset_peak();
      executor.run({.step = step,
                    .scalars = {{"lr.0", 0.01}},
                    .data = [&](const std::string& name, int64_t) { return batch_.at(name); }});
      outcome.peak = std::max(outcome.peak, device->peak());
      outcome.losses.push_back(executor.tensor(Kind::result, "loss").item<double>());
    }
    for (const auto& name : executor.names(Kind::parameter)) {
      outcome.weights[name] = executor.tensor(Kind::parameter, name).clone();
    }
    return outcome;
  }

 private:
  std::shared_ptr<Net> net_;
  Batch batch_;
  plan::Plan plan_;
  compile::Program program_;
};

bool equal(const ServedOutcome& a, const ServedOutcome& b) {
  return a.losses == b.losses &&
         std::all_of(a.weights.begin(), a.weights.end(), [&](const auto& weight) {
           return at::equal(weight.second, b.weights.at(weight.first));
         });
}

TEST_CASE("a program whose allocations are served allocates nothing beside its frames") {
  const Trained trained;
  const auto expected = trained.run(cpu_device());
  served = 0;
  const auto outcome = trained.run(std::make_shared<ServingCpu>(Disturbed::none));
  CHECK(served > 100);
  CHECK(equal(outcome, expected));
  CHECK(outcome.peak == outcome.frames);
}

TEST_CASE("allocations that are not in the trace change no result") {
  const Trained trained;
  const auto expected = trained.run(cpu_device());
  const auto device = std::make_shared<ServingCpu>(Disturbed::elsewhere);
  const auto outcome = trained.run(device);
  CHECK(equal(outcome, expected));
  CHECK(outcome.peak > outcome.frames);
  // Results of pointwise ops take the place of operands: only the trace, which lists no other
  // allocation, allows that.
  CHECK(device->ops_over_operands > 0);
  CHECK_FALSE(equal(trained.run(std::make_shared<ServingCpu>(Disturbed::in_place)), expected));
}

}  // namespace
}  // namespace perigee::exec
