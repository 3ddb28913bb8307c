// Weight gradients of the vocabulary head, deferred to the end of the last stage's schedule
// (overlap's deferred_head): the numbers of one device, memory, a shorter step, negative controls.
#include <fmt/format.h>

#include "base/error.h"
#include "exec/op_threads.h"
#include "simulate/simulate.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Instruction;
using compile::Program;

constexpr int64_t kDeferredRows = 16, kDeferredMicrobatches = 4;
const std::string kTied =
    "kind = 'gpt'\nlayers = 4\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 12\ndropout = 0.1\n";
const std::string kUntied = kTied + "tied = false\n";

struct OneDevice {
  Given given;
  Outcome outcome;
};

const OneDevice& one_device(const std::string& model) {
  static std::map<std::string, OneDevice> known;
  const auto [at, added] = known.try_emplace(model);
  if (added) {
    torch::manual_seed(5);
    at->second.given = built_in(model, kDeferredRows, kDeferredMicrobatches);
    const auto plan = plan_of(
        at->second.given, strategy_on(R"(["data", 1])", "", kDeferredMicrobatches), kDeferredRows);
    at->second.outcome = train(at->second.given, plan)[0];
  }
  return at->second;
}

const std::string kStages = R"(["pipe", 2])";

// `deferred`: overlap's fields as data; "": no overlap.
std::string deferred_strategy(const std::string& schedule, const std::string& deferred,
                              const std::string& more = "", const std::string& axes = kStages) {
  auto methods = fmt::format(R"(["pipeline_parallel", {{"schedule": "{}"}}])", schedule);
  if (!deferred.empty()) methods += fmt::format(R"(, ["overlap", {{{}}}])", deferred);
  return strategy_on(axes, methods + more, kDeferredMicrobatches);
}

const std::string kAll = R"("deferred_head": true)";
std::string of_most(int count) { return fmt::format(R"("deferred_head": {})", count); }

plan::Plan deferred_plan(const std::string& strategy, const std::string& model = kTied) {
  auto plan = plan_of(one_device(model).given, strategy, kDeferredRows);
  plan::verify(plan, one_device(model).given.graph);
  return plan;
}

compile::Programs programs_of(const std::string& strategy, const std::string& model = kTied) {
  static DryRuns traces;
  exec::set_op_threads(1);
  return compile::compile_all(one_device(model).given.graph, deferred_plan(strategy, model),
                              {.clip_norm = 0.5}, traces);
}

int64_t peak_of_last(const std::string& strategy) {
  const auto programs = programs_of(strategy);
  return programs.of(programs.ranks.size() - 1).peak_bytes;
}

// The runs of the last stage: F, B and W with the microbatch's number.
std::string order_of_last(const std::string& strategy) {
  const auto programs = programs_of(strategy);
  const auto& program = programs.of(programs.ranks.size() - 1);
  std::string order;
  for (const auto& run : program.order) {
    const auto& name = program.sections[run.section].name();
    if (name.find('.') == std::string::npos) continue;
    order += name.starts_with("forward") ? 'F' : name.starts_with("backward") ? 'B' : 'W';
    order += std::to_string(run.microbatch);
  }
  return order;
}

// Each op takes a second, a collective almost none.
class Seconds : public cost::Measurements {
 public:
  std::optional<double> op(const std::string&) override { return 1; }
  std::optional<double> collective(const cost::Cluster&, cost::CollectiveKind, double,
                                   const std::vector<int64_t>&) override {
    return 1e-9;
  }
};

struct Simulated {
  simulate::Simulation simulation;
  double last_backward = 0;  // start of the last stage's last backward pass
};

Simulated simulated(const std::string& strategy) {
  cost::DeviceSpec device{.name = "d", .count = 2, .memory = 1e9, .bandwidth = 1e9};
  device.peak = {{graph::DType::float32, 1e9}, {graph::DType::float64, 1e9}};
  device.vector = 1e9;
  const cost::Cluster cluster{"test", {device}, {{"node", 2, 1e15, 0, ""}}};
  Seconds seconds;
  simulate::OpCosts costs(cluster, seconds);
  const auto programs = programs_of(strategy);
  Simulated result{
      simulate::simulate(programs, deferred_plan(strategy).mesh, costs, {.runs = true})};
  for (const auto& run : result.simulation.runs.back()) {
    if (!programs.of(1).sections[run.section].name().starts_with("backward")) continue;
    result.last_backward = std::max(result.last_backward, run.begin);
  }
  return result;
}

}  // namespace

TEST_CASE("a pipeline with a deferred head trains as one device does") {
  struct Case {
    std::string strategy, model = kTied;
  };
  const std::string two = R"(["pipe", 2], ["data", 2])", tensor = R"(["tensor", 2], ["pipe", 2])";
  for (const auto& [strategy, model] : {
           Case{deferred_strategy("1f1b", kAll)},
           Case{deferred_strategy("1f1b", of_most(1)), kUntied},
           Case{deferred_strategy("1f1b", of_most(9))},
           Case{deferred_strategy("gpipe", of_most(2)), kUntied},
           Case{deferred_strategy("eager_1f1b", kAll)},
           Case{deferred_strategy("interleaved", of_most(3))},
           Case{deferred_strategy("looped_bfs", kAll), kUntied},
           Case{deferred_strategy("1f1b", kAll, "", R"(["pipe", 4])")},
           Case{deferred_strategy("1f1b", kAll + R"(, "accumulate": true, "receives": true)"),
                kUntied},
           Case{deferred_strategy("1f1b", of_most(2), R"(, ["zero1", {}])", two), kUntied},
           Case{deferred_strategy("1f1b", of_most(2), R"(, ["zero1", {}])", two)},
           Case{deferred_strategy("1f1b", of_most(2), R"(, ["zero2", {}])", two), kUntied},
           Case{deferred_strategy("1f1b", kAll, R"(, ["fsdp", {}])", two), kUntied},
           Case{deferred_strategy("1f1b", kAll, R"(, ["grad_comm", {"bucket_mb": 0.001}])", two)},
           Case{deferred_strategy("1f1b", kAll, R"(, ["grad_comm", {"overlap": false}])", two),
                kUntied},
           Case{deferred_strategy("1f1b", kAll, R"(, ["tensor_parallel", {}])", tensor)},
           Case{deferred_strategy("1f1b", kAll + R"(, "slices": 2)", R"(, ["tensor_parallel", {}])",
                                  tensor),
                kUntied},
           Case{deferred_strategy("1f1b", kAll, R"(, ["tensor_parallel", {"sequence": true}])",
                                  tensor),
                kUntied},
           Case{deferred_strategy("1f1b", kAll, R"(, ["context_parallel", {}])",
                                  R"(["pipe", 2], ["context", 2])")},
           Case{deferred_strategy("1f1b", of_most(2), R"(, ["offload", {"optimizer": true}])")},
           Case{deferred_strategy("1f1b", of_most(2), R"(, ["checkpoint", ["blocks.*"]])"),
                kUntied},
           Case{
               deferred_strategy("gpipe", of_most(2),
                                 R"(, ["checkpoint", {"1": "blocks.*", "kept_microbatches": 1}])")},
       }) {
    INFO(strategy);
    const auto& one = one_device(model);
    const auto plan = deferred_plan(strategy, model);
    CHECK((plan::parse(plan::print(plan)) == plan));
    const auto ranks = train(one.given, plan);
    CHECK(compare(one.outcome, ranks) == "");
    CHECK(compare_memory(one.given, plan, ranks) == "");
  }
}

TEST_CASE("deferred products run after the last stage's other sections") {
  CHECK(order_of_last(deferred_strategy("1f1b", "")) == "F0B0F1B1F2B2F3B3");
  CHECK(order_of_last(deferred_strategy("1f1b", kAll)) == "F0B0F1B1F2B2F3B3W0W1W2W3");
  CHECK(order_of_last(deferred_strategy("1f1b", of_most(1))) == "F0B0F1B1W1F2B2W2F3B3W3W0");
  // The product and its accumulation.
  const auto all = programs_of(deferred_strategy("1f1b", kAll));
  CHECK_THAT(compile::summary(all.of(1)), Catch::Contains("weights.1.deferred_first x 1: 1 ops") &&
                                              Catch::Contains("weights.1.deferred x 3: 2 ops"));
  CHECK_THAT(compile::summary(all.of(0)), !Catch::Contains("weights"));
  for (const auto& program : all.programs) compile::verify(program);
}

TEST_CASE("each deferred microbatch takes the memory of the product's operands") {
  const auto none = peak_of_last(deferred_strategy("1f1b", "")),
             one = peak_of_last(deferred_strategy("1f1b", of_most(1))),
             two = peak_of_last(deferred_strategy("1f1b", of_most(2))),
             three = peak_of_last(deferred_strategy("1f1b", of_most(3)));
  // Of 4 samples of 6 tokens: hidden states of 24 and gradients of 12 logits, of 8 bytes.
  const int64_t operands = 4 * 6 * (24 + 12) * 8;
  CHECK(none < two);
  CHECK(two - one == operands);
  CHECK(three - two == operands);
  CHECK(peak_of_last(deferred_strategy("1f1b", of_most(9))) ==
        peak_of_last(deferred_strategy("1f1b", kAll)));
}

TEST_CASE("a step is shorter where the last stage's products are deferred") {
  const auto plain = simulated(deferred_strategy("1f1b", "")),
             all = simulated(deferred_strategy("1f1b", kAll)),
             half = simulated(deferred_strategy("1f1b", of_most(2)));
  CHECK(all.simulation.step_seconds < half.simulation.step_seconds);
  CHECK(half.simulation.step_seconds < plain.simulation.step_seconds);
  // The last stage, which has the most work, reaches its last backward pass earlier by the products
  // of the earlier microbatches: one in the first, one and a sum in each of the others.
  CHECK(all.last_backward == Approx(plain.last_backward - (1 + 2 + 2)));
  CHECK(half.last_backward == Approx(plain.last_backward - (1 + 2 + 2) + 1));
  CHECK(all.simulation.bubble_ratio < plain.simulation.bubble_ratio);
}

TEST_CASE("a missing deferred product, or a freed operand of one, is detected") {
  const auto plan = deferred_plan(deferred_strategy("1f1b", of_most(2)));
  for (const char* name : {"weights.1.deferred_first", "weights.1.deferred"}) {
    int found = 0;
    const auto forget = [&](Program& program) {
      for (auto& section : program.sections) {
        if (section.name() != name) continue;
        found += std::erase_if(section.instructions,
                               [](const Instruction& i) { return i.op == "aten::mm"; }) > 0;
      }
    };
    CHECK(compare(one_device(kTied).outcome, train(one_device(kTied).given, plan, forget)) != "");
    CHECK(found == 1);
  }
  // Microbatches that share a copy of the frame overwrite each other's operands.
  auto program = programs_of(deferred_strategy("1f1b", kAll)).of(1);
  for (size_t f = 0; f < program.frames.size(); ++f) {
    if (program.frames[f].name != "microbatch.1.deferred") continue;
    REQUIRE(program.frames[f].copies == kDeferredMicrobatches);
    for (auto& slot : program.slots) slot[f] = std::min(slot[f], 1);
  }
  CHECK_THROWS_WITH(compile::verify(program), Catch::Contains("must be"));
}

TEST_CASE("a head that cannot be deferred is refused with the reason") {
  using Catch::Contains;
  const auto why = [](const std::string& strategy, const std::string& model = kTied) {
    try {
      programs_of(strategy, model);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto one_stage = strategy_on(R"(["data", 1])", R"(["overlap", {"deferred_head": true}])",
                                     kDeferredMicrobatches);
  CHECK(why(deferred_strategy("1f1b", kAll)) == "");
  CHECK_THAT(why(one_stage), Contains("requires pipeline_parallel"));
  CHECK_THAT(why(deferred_strategy("zb1p", kAll)),
             Contains("zb1p already defers all") && Contains("or use 1f1b"));
  CHECK_THAT(why(deferred_strategy("1f1b", R"("deferred_head": 0)")),
             Contains("above 0, but got 0"));
  CHECK_THAT(why(deferred_strategy("1f1b", R"("deferred_head": "all")")),
             Contains("must be true or a number"));
  CHECK_THAT(why(deferred_strategy("1f1b", R"("head": "embed.weight")")),
             Contains("deferred_head = true"));
  CHECK_THAT(why(deferred_strategy("1f1b", kAll + R"(, "head": "hed.weight")"), kUntied),
             Contains("did you mean \"head.weight\"?"));
  CHECK_THAT(why(deferred_strategy("1f1b", kAll + R"(, "head": "blocks.0.mlp.up.weight")")),
             Contains("name another parameter"));
  CHECK_THAT(why(deferred_strategy("1f1b", kAll, R"(, ["offload", ["blocks.*"]])")),
             Contains("use one of the two"));
  // A sharded head must be a unit of its own.
  const auto two = R"(["pipe", 2], ["data", 2])";
  auto plan = deferred_plan(deferred_strategy("1f1b", kAll, R"(, ["zero2", {}])", two), kUntied);
  plan.overlap.deferred.push_back("norm.weight");
  CHECK_THROWS_WITH(plan::verify(plan, one_device(kUntied).given.graph),
                    Contains("a unit of their own"));
}

}  // namespace perigee::parity
