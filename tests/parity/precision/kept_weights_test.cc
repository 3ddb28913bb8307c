// Weights kept in a low precision beside float32 weights (keep_weights): the same bits as casts in
// each microbatch, under every plan, also after the host has written weights.
#include <fmt/format.h>

#include "exec/comm/threads.h"
#include "exec/executor.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/parity/support/steps.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using Catch::Contains;
using compile::Instruction;
using compile::Program;
using Kind = compile::Binding::Kind;

constexpr int64_t kKeptSteps = 3;
const std::string kKeptOne = R"(["data", 1])", kKeptTwo = R"(["data", 2])";

const Given& kept_model(int64_t microbatches, const std::string& more = "") {
  static std::map<std::pair<int64_t, std::string>, Given> known;
  const auto [at, added] = known.try_emplace({microbatches, more});
  if (added) {
    torch::manual_seed(5);
    at->second = built_in(
        "kind = 'gpt'\nlayers = 2\nwidth = 16\nheads = 2\nhidden = 32\nvocab = 24\n" + more, kRows,
        microbatches, "float32");
  }
  return at->second;
}

// Returns a strategy with low weights that are kept or not.
plan::Plan kept_plan(const Given& given, const std::string& axes, std::string method, bool keep,
                     const std::string& more, int64_t microbatches) {
  if (keep) method.insert(method.rfind('}'), R"(, "keep_weights": true)");
  return plan_of(given, strategy_on(axes, method + more, microbatches), kRows);
}

const std::string kKeptAmp = R"(["amp_native", {"dtype": "bf16"}])",
                  kKeptHalf = R"(["half", {"dtype": "bf16"}])",
                  kKeptHalf16 = R"(["half", {"dtype": "fp16", "init_scale": 4}])";

// Returns how many casts of weights run for each microbatch.
int64_t weight_casts(const Program& program) {
  const auto root = [&](graph::ValueId v) {
    const auto& value = program.values[v.index];
    return value.view_of.defined() ? value.view_of : v;
  };
  std::set<int32_t> weights;
  for (const auto& binding : program.bindings) {
    if (binding.kind == Kind::parameter) weights.insert(root(binding.value).index);
  }
  int64_t found = 0;
  for (const auto& section : program.sections) {
    for (const auto& i : section.instructions) {
      if (i.op != "perigee::cast") continue;
      found += weights.contains(root(std::get<graph::ValueId>(i.args[0].second)).index);
    }
  }
  return found;
}

}  // namespace

TEST_CASE("kept low weights train with the bits of casts under every plan") {
  struct Case {
    std::string axes, method, more;
    int64_t microbatches = 1;
    std::string optimizer = "adamw", model;
  };
  const std::vector<Case> cases = {
      {kKeptOne, kKeptAmp, ""},
      {kKeptOne, kKeptAmp, R"(, ["overlap", {"accumulate": true}])", 4},
      {kKeptOne, kKeptHalf, "", 2},
      {kKeptOne, kKeptHalf16, R"(, ["checkpoint", ["blocks.*"]])", 2},
      {kKeptOne, kKeptAmp, R"(, ["offload", {"optimizer": true}])", 2},
      {kKeptOne, kKeptAmp, "", 1, "muon"},
      {kKeptOne, kKeptAmp, "", 1, "adafactor"},
      {kKeptOne, kKeptAmp, "", 1, "sgd", "tied = false\n"},
      {kKeptTwo, kKeptAmp, "", 2},
      {kKeptTwo, kKeptAmp, R"(, ["zero1", {}])", 2},
      {kKeptTwo, kKeptAmp, R"(, ["zero2", {}])", 2},
      {kKeptTwo, kKeptAmp, R"(, ["overlap", {"step": true}])", 2},
      {R"(["tensor", 2], ["data", 1])", kKeptAmp, R"(, ["tensor_parallel", {"sequence": true}])",
       2},
      {R"(["pipe", 2], ["data", 1])", kKeptAmp, R"(, ["pipeline_parallel", {"schedule": "1f1b"}])",
       4},
      {R"(["pipe", 2], ["data", 1])", kKeptHalf, R"(, ["pipeline_parallel", {"schedule": "zb1p"}])",
       4},
      {R"(["data", 2])", kKeptAmp, R"(, ["local_sgd", {"every": 2}])", 2}};
  for (const auto& [axes, method, more, microbatches, optimizer, model] : cases) {
    INFO(axes << method << more << ", " << microbatches << " microbatches, " << optimizer);
    const bool copies = more.find("local_sgd") != more.npos;
    const auto& given = kept_model(copies ? 2 * microbatches : microbatches, model);
    const compile::StepSpec spec{.optimizer = optimizer};
    const auto plain = kept_plan(given, axes, method, false, more, microbatches),
               kept = kept_plan(given, axes, method, true, more, microbatches);
    CHECK(weight_casts(compile_rank(given, plain, spec)) > 0);
    CHECK(weight_casts(compile_rank(given, kept, spec)) == 0);
    const auto expected = train(given, plain, {}, spec, kKeptSteps),
               ranks = train(given, kept, {}, spec, kKeptSteps);
    for (size_t r = 0; r < ranks.size(); ++r) CHECK(find_difference(expected[r], ranks[r]) == "");
    if (more.find("step") != more.npos) continue;  // it cannot clip, as that comparison does
    CHECK(compare_memory(given, kept, train(given, kept, {}, {}, 1)) == "");
  }
}

TEST_CASE("low weights that the optimizer or the refresh does not write are noticed") {
  const auto& given = kept_model(2);
  const auto plan = kept_plan(given, kKeptOne, kKeptAmp, true, "", 2);
  const compile::StepSpec spec{.optimizer = "adamw"};
  const auto right = train(given, plan, {}, spec, kKeptSteps);
  const auto changed = [&](const std::function<void(Program&)>& edit) {
    return find_difference(right[0], train(given, plan, edit, spec, kKeptSteps)[0]);
  };
  CHECK(changed([](Program&) {}) == "");
  CHECK_THAT(changed([](Program& program) {
               for (auto& section : program.sections) {
                 for (auto& i : section.instructions) {
                   if (i.args.empty() || i.args.back().first != "low") continue;
                   i.args.pop_back();
                   i.outputs.pop_back();
                 }
               }
             }),
             Contains("loss 1"));
  CHECK_THAT(changed([](Program& program) {
               std::erase_if(program.order, [](const auto& run) { return run.after_writes; });
             }),
             Contains("loss 0"));
}

TEST_CASE("a step after the host has written weights reads the new ones in the low precision") {
  const auto& given = kept_model(1);
  // `held`: the host writes through a tensor that it got before the first step.
  const auto losses = [&](bool keep, bool held) {
    const auto plan = kept_plan(given, kKeptOne, kKeptAmp, keep, "", 1);
    const auto program = compile_rank(given, plan);
    auto communicators = exec::thread_communicators(1);
    exec::Executor executor(program, *communicators[0], plan.mesh, {.seed = 9});
    set_weights(executor, given);
    auto early = held ? executor.tensor(Kind::parameter, "blocks.1.mlp.up.weight") : at::Tensor();
    std::vector<double> found;
    for (int64_t step = 0; step < 4; ++step) {
      found.push_back(run_steps(executor, given, 1).losses[0]);
      if (step == 2) early.reset();
      auto weight = held && step < 2 ? early
                                     : executor.tensor(Kind::parameter, "blocks.1.mlp.up.weight");
      weight.mul_(2.5);
    }
    return found;
  };
  CHECK(losses(true, false) == losses(false, false));
  CHECK(losses(true, true) == losses(false, true));
  CHECK(losses(true, true) == losses(false, false));
}

TEST_CASE("weights are cast after writes of the host only") {
  const auto& given = kept_model(1);
  const auto plan = kept_plan(given, kKeptOne, kKeptAmp, true, "", 1);
  auto communicators = exec::thread_communicators(1);
  exec::Executor executor(compile_rank(given, plan), *communicators[0], plan.mesh, {.seed = 9});
  set_weights(executor, given);
  executor.record(true);
  const auto refreshes = [&] {
    executor.record(true);
    run_steps(executor, given, 1);
    return std::ranges::any_of(executor.intervals(),
                               [](const auto& i) { return i.section == "refresh"; });
  };
  CHECK(refreshes());
  CHECK_FALSE(refreshes());
  executor.tensor(Kind::state, "exp_avg:blocks.0.mlp.up.weight").zero_();
  CHECK_FALSE(refreshes());
  const auto held = executor.tensor(Kind::parameter, "blocks.0.mlp.up.weight");
  CHECK(refreshes());
  CHECK(refreshes());
}

TEST_CASE("weights that are not whole or not float32 are not kept in a low precision") {
  const auto& given = kept_model(1);
  const auto why = [&](const std::string& method, const std::string& more) -> std::string {
    try {
      plan::verify(kept_plan(given, kKeptTwo, method, true, more, 1), given.graph);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  };
  CHECK_THAT(why(kKeptAmp, R"(, ["fsdp", {}])"),
             Contains("keep_weights") && Contains("stored in parts (fsdp)") && Contains("zero1"));
  CHECK_THAT(why(kKeptHalf, R"(, ["zero1", {}])"),
             Contains("keep_weights") && Contains("gathered in a low precision"));
  CHECK_THAT(why(kKeptAmp, R"(, ["zero1", {"one_copy": true}])"),
             Contains("one_copy must be false") && Contains("keep_weights"));
  CHECK_THAT(why(R"(["half", {"dtype": "bf16", "masters": false}])", ""),
             Contains("keep_weights") && Contains("masters is false"));
}

}  // namespace perigee::parity
