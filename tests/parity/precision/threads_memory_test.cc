// Predicted memory equals counted memory to the byte, however many threads LibTorch's ops use and
// whichever thread records their traces first.
#include <thread>

#include "exec/comm/threads.h"
#include "exec/executor.h"
#include "exec/op_threads.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/memory.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using Kind = compile::Binding::Kind;

// Without dropout, attention takes LibTorch's flash kernels, which multiply on every thread.
Given model_of(const std::string& kind) {
  const std::string more = kind == "moe" ? "experts = 4\n" : "";
  return built_in("kind = '" + kind + "'\nlayers = 2\nwidth = 64\nheads = 4\nvocab = 32\n" + more,
                  4, 1, "float32", 64);
}

plan::Plan plan_in(const Given& given, const std::string& precision) {
  return plan_of(given, strategy_on(R"(["data", 1])", precision), 4);
}

compile::Program dry_program_of(const Given& given, const plan::Plan& plan) {
  DryRuns traces;
  return compile::compile(given.graph, plan, {.clip_norm = 0.5}, 0, traces);
}

struct Steps {
  int64_t counted = 0;  // bytes that all threads of the process hold at most
  double loss = 0, norm = 0;
};

// Runs two steps of the program.
Steps run_steps(const Given& given, const compile::Program& program, const mesh::Mesh& mesh,
                int threads) {
  Steps steps;
  exec::run_ranks(1, [&](exec::Communicator& communicator) {
    const auto before = counted_now();
    exec::Executor executor(program, communicator, mesh, {.threads = threads, .seed = 9});
    std::map<std::string, double> rates;
    for (const auto& binding : executor.program().bindings) {
      if (binding.kind == Kind::parameter || binding.kind == Kind::buffer) {
        executor.tensor(binding).copy_(given.inputs.at(binding.name));
      }
      if (binding.name.starts_with("lr.")) rates[binding.name] = 0.01;
    }
    reset_counted_peak();
    for (int64_t step = 1; step <= 2; ++step) {
      executor.run({.step = step, .scalars = rates, .data = [&](const std::string& name, int64_t) {
                      return given.inputs.at(name);
                    }});
    }
    steps = {counted_peak() - before, executor.tensor(Kind::result, "loss").item<double>(),
             executor.tensor(Kind::result, "grad_norm").item<double>()};
  });
  return steps;
}

const std::vector<std::string> kPrecisions = {"", R"(["half", {"dtype": "bf16"}])",
                                              R"(["amp_native", {"dtype": "bf16"}])"};

TEST_CASE("a step on 1 to 4 threads holds the predicted bytes in every precision") {
  for (const char* kind : {"gpt", "llama", "moe"}) {
    torch::manual_seed(5);
    const auto given = model_of(kind);
    for (const auto& precision : kPrecisions) {
      const auto plan = plan_in(given, precision);
      Steps one;
      for (int threads = 1; threads <= 4; ++threads) {
        INFO(kind << " " << precision << ", " << threads << " threads");
        exec::set_op_threads(threads);
        const auto program = dry_program_of(given, plan);
        CHECK(program.exact_memory);
        const auto steps = run_steps(given, program, plan.mesh, threads);
        CHECK(steps.counted == program.peak_bytes);
        // Memory that two threads share by mistake would change what they compute.
        if (threads == 1) one = steps;
        CHECK(steps.loss == Approx(one.loss).epsilon(1e-3));
        CHECK(steps.norm == Approx(one.norm).epsilon(1e-2));
      }
    }
  }
  exec::set_op_threads(1);
}

TEST_CASE("a trace without the allocations of ops is refused") {
  torch::manual_seed(5);
  const auto given = model_of("gpt");
  const auto plan = plan_in(given, kPrecisions[1]);
  exec::set_op_threads(2);
  auto program = dry_program_of(given, plan);
  int64_t left_out = 0;
  for (auto& section : program.sections) {
    for (auto& instruction : section.instructions) {
      if (instruction.allocations.empty()) continue;
      instruction.worker_bytes = 0;
      instruction.allocations.clear();
      ++left_out;
    }
  }
  CHECK(left_out > 0);
  CHECK_THROWS_WITH(run_steps(given, program, plan.mesh, 2),
                    Catch::Contains("as when its trace was recorded, but makes one more"));
  exec::set_op_threads(1);
}

// Records each op twice: on this thread, and on a new one that has run no other op.
class RecordedTwice : public compile::TraceSource {
 public:
  std::optional<compile::OpTrace> find(const compile::OpInstance& instance) override {
    auto here = here_.find(instance);
    std::optional<compile::OpTrace> there;
    std::thread([&] {
      DryRuns traces;
      there = traces.find(instance);
    }).join();
    INFO(compile::key(instance));
    CHECK(there->allocations == here->allocations);
    CHECK(there->worker_bytes == here->worker_bytes);
    return here;
  }

 private:
  DryRuns here_;
};

TEST_CASE("a trace does not depend on whether its op is the first that a thread runs") {
  torch::manual_seed(5);
  const auto given = model_of("gpt");
  for (const auto& precision : kPrecisions) {
    const auto plan = plan_in(given, precision);
    for (int threads = 1; threads <= 4; ++threads) {
      INFO(precision << ", " << threads << " threads");
      exec::set_op_threads(threads);
      RecordedTwice traces;
      compile::compile(given.graph, plan, {.clip_norm = 0.5}, 0, traces);
    }
  }
  exec::set_op_threads(1);
}

}  // namespace
}  // namespace perigee::parity
