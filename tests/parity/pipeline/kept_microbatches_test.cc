// Activation checkpointing that keeps the activations of some microbatches in flight (checkpoint's
// kept_microbatches): the numbers of one device, memory between that of all kept and none kept,
// negative controls.
#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "exec/op_threads.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Instruction;
using compile::Program;

constexpr int64_t kKeptRows = 16, kKeptMicrobatches = 8;
const std::string kKeptDeep =
    "kind = 'gpt'\nlayers = 4\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 11\ndropout = 0.1\n";

const Given& deep_model() {
  static const Given given = [] {
    torch::manual_seed(5);
    return built_in(kKeptDeep, kKeptRows, kKeptMicrobatches);
  }();
  return given;
}

// `kept`: below 0 nothing is recomputed.
std::string kept_staged(const std::string& schedule, int kept, const std::string& more = "",
                        const std::string& axes = R"(["pipe", 2])") {
  auto methods = fmt::format(R"(["pipeline_parallel", {{"schedule": "{}"}}])", schedule) + more;
  if (kept >= 0) {
    methods += fmt::format(R"(, ["checkpoint", {{"1": "blocks.*", "kept_microbatches": {}}}])",
                           kept);
  }
  return strategy_on(axes, methods, kKeptMicrobatches);
}

plan::Plan plan_for(const std::string& strategy) {
  auto plan = plan_of(deep_model(), strategy, kKeptRows);
  plan::verify(plan, deep_model().graph);
  return plan;
}

const Outcome& one_device() {
  static const Outcome one = train(
      deep_model(),
      plan_of(deep_model(), strategy_on(R"(["data", 1])", "", kKeptMicrobatches), kKeptRows))[0];
  return one;
}

std::vector<Program> kept_programs(const std::string& strategy) {
  static DryRuns traces;
  exec::set_op_threads(1);
  return compile::compile_all(deep_model().graph, plan_for(strategy), {.clip_norm = 0.5}, traces)
      .programs;
}

std::vector<int64_t> peaks_of(const std::string& strategy) {
  std::vector<int64_t> peaks;
  for (const auto& program : kept_programs(strategy)) peaks.push_back(program.peak_bytes);
  return peaks;
}

}  // namespace

TEST_CASE("stages that recompute some microbatches train as one device does") {
  for (const char* schedule : {"1f1b", "eager_1f1b", "gpipe", "interleaved", "looped_bfs", "zb1p",
                               "zb2p", "zbv", "v_half", "dualpipe_v"}) {
    for (const int kept : {1, 2}) {
      INFO(schedule << ", " << kept << " kept");
      const auto plan = plan_for(kept_staged(schedule, kept));
      CHECK((plan::parse(plan::print(plan)) == plan));
      const auto ranks = train(deep_model(), plan);
      CHECK(compare(one_device(), ranks) == "");
      CHECK(compare_memory(deep_model(), plan, ranks) == "");
    }
  }
  for (const auto& [axes, more] : std::vector<std::pair<std::string, std::string>>{
           {R"(["pipe", 2], ["data", 2])", R"(, ["zero1", {}])"},
           {R"(["pipe", 2], ["data", 2])", R"(, ["zero2", {}])"},
           {R"(["pipe", 2], ["data", 2])", R"(, ["fsdp", {"match": ["blocks.*"]}])"},
           {R"(["pipe", 2], ["data", 2])", R"(, ["fsdp", {"reshard_after_forward": false}])"},
           {R"(["pipe", 2], ["zero", 2], ["data", 1])",
            R"(, ["fsdp", {"match": ["blocks.*"]}], ["grad_comm", {"bucket_mb": 0.001}])"},
           {R"(["pipe", 2], ["data", 2])", R"(, ["fsdp", {"cpu_offload": true}])"},
           {R"(["pipe", 2], ["data", 2])", R"(, ["grad_comm", {"bucket_mb": 0.001}])"},
           {R"(["tensor", 2], ["pipe", 2])", R"(, ["tensor_parallel", {"sequence": true}])"},
           {R"(["pipe", 2], ["context", 2])", R"(, ["context_parallel", {}])"},
           {R"(["pipe", 2], ["data", 1])", R"(, ["offload", {"optimizer": true}])"},
           {R"(["pipe", 2])", R"(, ["overlap", {"accumulate": true, "receives": true}])"}}) {
    INFO(axes << more);
    const auto plan = plan_for(kept_staged("1f1b", 1, more, axes));
    const auto ranks = train(deep_model(), plan);
    CHECK(compare(one_device(), ranks) == "");
    CHECK(compare_memory(deep_model(), plan, ranks) == "");
  }
}

TEST_CASE("a kept microbatch takes the memory of its activations") {
  const auto none = peaks_of(kept_staged("1f1b", -1)), all = peaks_of(kept_staged("1f1b", 0)),
             one = peaks_of(kept_staged("1f1b", 1)), two = peaks_of(kept_staged("1f1b", 2));
  // The first stage has two in flight, the last one.
  CHECK(all[0] < one[0]);
  CHECK(one[0] < two[0]);
  CHECK(two == none);
  CHECK(all[1] < one[1]);
  CHECK(one[1] == none[1]);
  const auto gpipe = [](int kept) { return peaks_of(kept_staged("gpipe", kept))[0]; };
  // Each kept microbatch adds the same bytes.
  const auto step = gpipe(3) - gpipe(2);
  CHECK(step > 0);
  for (const int kept : {2, 3, 5, 6}) {
    INFO(kept);
    CHECK(gpipe(kept + 1) - gpipe(kept) == step);
  }
  CHECK(gpipe(kKeptMicrobatches) == gpipe(-1));
}

TEST_CASE("the first microbatches are kept, and then each that starts when a kept one ends") {
  const auto program = kept_programs(kept_staged("1f1b", 1))[0];
  std::string order;
  for (const auto& run : program.order) {
    const auto& name = program.sections[run.section].name();
    const bool kept = name.find(".kept") != name.npos;
    if (name.starts_with("forward")) order += kept ? 'F' : 'f';
    if (name.starts_with("backward")) order += kept ? 'B' : 'b';
  }
  CHECK(order == "FfBFbfBFbfBFbfBb");
  CHECK_THAT(compile::summary(program), Catch::Contains("forward.0.kept x 4"));
}

TEST_CASE("a skipped kept microbatch and a redrawn mask are detected") {
  const auto plan = plan_for(kept_staged("1f1b", 1));
  const auto spoiled = [&](const std::function<bool(const compile::Section&)>& where,
                           const std::function<bool(compile::Section&)>& spoil) {
    int found = 0;
    const auto ranks = train(deep_model(), plan, [&](Program& program) {
      for (auto& section : program.sections) {
        if (where(section)) found += spoil(section);
      }
    });
    REQUIRE(found > 0);
    return compare(one_device(), ranks) != "";
  };
  for (const bool kept : {false, true}) {
    const auto backward = [&](const compile::Section& section) {
      return section.name().starts_with("backward") &&
             (section.name().find(".kept") != std::string::npos) == kept;
    };
    CHECK(spoiled(backward, [](compile::Section& section) {
      return std::erase_if(section.instructions,
                           [](const Instruction& i) { return i.op == "perigee::accumulate_"; }) > 0;
    }));
    CHECK(spoiled(backward, [](compile::Section& section) {
      bool found = false;
      for (auto& i : section.instructions) {
        for (auto& [name, arg] : i.args) {
          auto* key = std::get_if<int64_t>(&arg);
          if (!key || *key < 0 || (name != "key" && name != "random_key")) continue;
          *key += 1000;
          found = true;
        }
      }
      return found;
    }));
  }
}

TEST_CASE("invalid kept microbatches are refused with the reason") {
  using Catch::Contains;
  const auto why = [](const std::string& strategy) -> std::string {
    try {
      plan_for(strategy);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(why(kept_staged("1f1b", 1)).empty());
  CHECK_THAT(why(strategy_on(R"(["data", 1])",
                             R"(["checkpoint", {"1": "blocks.*", "kept_microbatches": 1}])",
                             kKeptMicrobatches)),
             Contains("requires pipeline_parallel"));
  CHECK_THAT(why(strategy_on(R"(["pipe", 2])",
                             R"(["pipeline_parallel", {}],
                                ["checkpoint", {"1": "blocks.*", "kept_microbatches": -1}])",
                             kKeptMicrobatches)),
             Contains("kept_microbatches must be at least 0, but got -1"));
  CHECK_THAT(why(kept_staged("1f1b", 1, R"(, ["offload", ["blocks.*"]])")),
             Contains("use one of the two"));
}

}  // namespace perigee::parity
