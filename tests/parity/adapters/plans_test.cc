// Adapters under every kind of plan against one device, with negative controls.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "compile/compile.h"
#include "graph/adapters/adapters.h"
#include "tests/parity/support/adapters.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"

namespace perigee::parity {
namespace {

const std::string kGpt4 =
    "kind = 'gpt'\nlayers = 4\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 12\ndropout = 0.1\n";
constexpr const char* kLora =
    R"({"match": ["qkv", "attn.out", "up", "down"], "rank": 2, "alpha": 3, "dropout": 0.2})";

struct Plans {
  Given given;
  int64_t microbatches;
  Outcome one;

  explicit Plans(int64_t microbatches, const std::string& keys = kGpt4,
                 const std::string& lora = kLora)
      : microbatches(microbatches), config(lora) {
    torch::manual_seed(7);
    given = with_adapters(built_in(keys, kRows, microbatches), lora);
    one = train(given, plan(R"(["data", 1])", ""))[0];
  }
  plan::Plan plan(const std::string& axes, const std::string& methods) const {
    const auto all = fmt::format(R"(["lora", {}]{}{})", config, methods.empty() ? "" : ", ",
                                 methods);
    return plan_of(given, strategy_on(axes, all, microbatches), kRows);
  }
  void check(const std::string& axes, const std::string& methods) const {
    INFO(axes << " " << methods << " " << microbatches << " microbatches");
    const auto made = plan(axes, methods);
    const auto ranks = train(given, made);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, made, ranks) == "");
  }

  std::string config;
};

}  // namespace

TEST_CASE("adapters train on any mesh as on one device", "[adapters]") {
  const Plans one(1);
  one.check(R"(["data", 2])", "");
  one.check(R"(["data", 4])", R"(["grad_comm", {"bucket_mb": 0.001}])");
  one.check(R"(["tensor", 2])", R"("tensor_parallel")");
  one.check(R"(["tensor", 3], ["data", 2])", R"(["tensor_parallel", {"sequence": true}])");
  one.check(R"(["tensor", 2])", R"(["tensor_parallel", {"planned": true}])");
  one.check(R"(["sequence", 2])", R"("sequence_parallel")");
  one.check(R"(["context", 2])", R"("context_parallel")");
}

TEST_CASE("adapters train in parts over ranks as on one device", "[adapters]") {
  const Plans two(2);
  for (const char* method : {"zero1", "zero2", "fsdp"}) {
    two.check(R"(["data", 2])", fmt::format(R"("{}")", method));
  }
  two.check(R"(["data", 4])", R"(["fsdp", {"match": "blocks.*"}], ["checkpoint", ["blocks.*"]])");
  two.check(R"(["tensor", 2], ["data", 2])", R"("tensor_parallel", "fsdp")");
}

TEST_CASE("adapters train in a pipeline as on one device", "[adapters]") {
  const Plans four(4);
  four.check(R"(["pipe", 2])", R"(["pipeline_parallel", {"schedule": "1f1b"}])");
  four.check(R"(["pipe", 2])", R"(["pipeline_parallel", {"schedule": "zb1p"}])");
  four.check(R"(["pipe", 2], ["tensor", 2])",
             R"(["pipeline_parallel", {"schedule": "interleaved", "chunks": 2}], "tensor_parallel",
                ["checkpoint", ["blocks.*"]])");
  four.check(R"(["pipe", 2], ["data", 2])",
             R"(["pipeline_parallel", {"schedule": "gpipe"}], "zero1")");
}

TEST_CASE("without the sum over ranks adapters do not train as on one device", "[adapters]") {
  const Plans one(1);
  for (const auto& [axes, methods] :
       {std::pair{R"(["data", 2])", ""}, std::pair{R"(["tensor", 2])", R"("tensor_parallel")"}}) {
    size_t removed = 0;
    const auto ranks = train(one.given, one.plan(axes, methods), [&](compile::Program& program) {
      std::set<int32_t> sums;
      for (const auto& section : program.sections) {
        for (const auto& i : section.instructions) {
          if (i.op == "comm::all_reduce") sums.insert(i.event);
        }
      }
      for (auto& section : program.sections) {
        removed += std::erase_if(section.instructions,
                                 [&](const auto& i) { return sums.contains(i.event); });
      }
    });
    CHECK(removed > 0);
    CHECK(compare(one.one, ranks) != "");
  }
}

TEST_CASE("frozen weights keep every bit and have no gradient and no optimizer state",
          "[adapters]") {
  const Plans two(2);
  for (const auto& [axes, methods] :
       {std::pair{R"(["data", 1])", ""}, std::pair{R"(["data", 2])", R"("fsdp")"},
        std::pair{R"(["tensor", 2])", R"("tensor_parallel")"}}) {
    const auto plan = two.plan(axes, methods);
    compile::NoTraces traces;
    const auto program = compile::compile(two.given.graph, plan, {}, 0, traces);
    std::set<std::string> states;
    for (const auto& binding : program.bindings) {
      if (binding.kind != compile::Binding::Kind::state) continue;
      states.insert(binding.name);
      CHECK(binding.name.find("lora") != std::string::npos);
    }
    CHECK(states.size() <= 2 * 2 * plan.adapters->weights.size());  // two of A and two of B
    CHECK_FALSE(states.empty());
    for (const auto& rank : train(two.given, plan)) {
      int frozen = 0;
      for (const auto& [name, part] : rank.tensors) {
        const auto* input = two.given.graph.find_input(name);
        if (!input || input->kind != graph::Input::Kind::parameter || input->trainable) continue;
        auto whole = two.given.inputs.at(name);
        for (size_t d = 0; d < part.second.size(); ++d) {
          whole = whole.narrow(static_cast<int64_t>(d), part.second[d].begin,
                               part.second[d].length);
        }
        CHECK(at::equal(part.first, whole));
        ++frozen;
      }
      CHECK(frozen > 0);
    }
  }
}

TEST_CASE("frozen weights in units are not averaged over copies", "[adapters]") {
  const Plans four(4);  // a graph of two samples: those of a copy in one of two microbatches
  const auto methods = fmt::format(
      R"(["lora", {}], ["fsdp", {{"axis": "zero"}}], ["local_sgd", {{"every": 1}}])", four.config);
  const auto plan = plan_of(four.given, strategy_on(R"(["zero", 2], ["data", 2])", methods, 2),
                            kRows);
  CHECK(std::ranges::any_of(
      plan.units, [](const auto& unit) { return unit.name.find("frozen") != std::string::npos; }));
  compile::NoTraces traces;
  const auto program = compile::compile(four.given.graph, plan, {}, 0, traces);
  int averages = 0;
  for (const auto& section : program.sections) {
    if (section.name() != "average.1") continue;
    for (const auto& i : section.instructions) {
      if (i.op != "comm::all_reduce") continue;
      ++averages;
      const auto& reduced = program.values[compile::operand_of(i).index];
      CHECK(reduced.name.text.find("frozen") == std::string::npos);
    }
  }
  CHECK(averages > 0);
}

TEST_CASE("adapters need less memory than training all weights", "[adapters]") {
  const Plans one(1);
  torch::manual_seed(7);
  const auto all = built_in(kGpt4, kRows, 1);
  compile::NoTraces traces;
  const auto peak = [&](const Given& given, const plan::Plan& plan) {
    return compile::predict_memory(given.graph, plan, {}, traces).peak_bytes[0];
  };
  int64_t weights = 0;
  for (const auto& input : all.graph.inputs) {
    if (input.kind == graph::Input::Kind::parameter) weights += all.graph.type(input.value).bytes();
  }
  // Gradients and two states.
  CHECK(peak(one.given, one.plan(R"(["data", 1])", "")) <
        peak(all, plan_of(all, strategy_on(R"(["data", 1])", ""), kRows)) - 2 * weights);
}

}  // namespace perigee::parity
