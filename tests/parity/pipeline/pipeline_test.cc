// Pipelines: stages over ranks train as one device does, with every schedule.
#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "compile/compile.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/golden.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Instruction;
using compile::Program;

constexpr int64_t kPipelineMicrobatches = 4;

const char* const kPipelineDeep =
    "kind = 'gpt'\nlayers = 4\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 11\ndropout = 0.1\n";

// Adds a pipeline to the plan of a strategy without one.
plan::Plan stages_plan(const Given& given, const std::string& axes, plan::Pipeline pipeline,
                       int64_t microbatches = kPipelineMicrobatches) {
  auto plan = plan_of(given,
                      fmt::format(R"([["parallel_mode", {}], ["gradient_accumulation",
                                     {{"microbatches": {}}}]])",
                                  axes, microbatches),
                      kRows);
  pipeline.axis = "pipe";
  plan.pipeline = std::move(pipeline);
  return plan;
}

// The outcome of one device.
auto train_on_one_device(const Given& given) {
  auto one_device = stages_plan(given, R"([["pipe", 1]])", {});
  one_device.pipeline = {};
  return train(given, one_device)[0];
}

struct Case {
  std::string schedule;
  std::vector<std::string> starts;
  int64_t chunks = 1;
};

TEST_CASE("pipelines of every schedule train a GPT as one device does") {
  torch::manual_seed(5);
  const auto given = built_in(kPipelineDeep, kRows, kPipelineMicrobatches);
  const auto one = train_on_one_device(given);
  const std::vector<std::string> two = {"blocks.2"}, four = {"blocks.1", "blocks.2", "blocks.3"};
  // The first part has only the embedding, the last one only the head.
  const std::vector<std::string> bare = {"blocks.0", "blocks.1", "blocks.2", "blocks.3", "norm"};
  const std::vector<Case> cases = {{"gpipe", two},
                                   {"1f1b", two},
                                   {"eager_1f1b", two},
                                   {"zb1p", two},
                                   {"zb2p", two},
                                   {"1f1b", four},
                                   {"interleaved", four, 2},
                                   {"looped_bfs", four, 2},
                                   {"interleaved", bare, 3},
                                   {"looped_bfs", bare, 3},
                                   {"zbv", bare, 2},
                                   {"zbv", four, 2},
                                   {"v_half", four, 2},
                                   {"dualpipe_v", four, 2},
                                   {"v_min",
                                    {"blocks.0.mlp", "blocks.1", "blocks.1.mlp", "blocks.2",
                                     "blocks.2.mlp", "blocks.3", "blocks.3.mlp"},
                                    2}};
  for (const auto& [schedule, starts, chunks] : cases) {
    const auto stages = (std::ssize(starts) + 1) / chunks;
    INFO(schedule << ", " << stages << " stages, " << chunks << " chunks");
    const auto plan = stages_plan(given, fmt::format(R"([["pipe", {}]])", stages),
                                  {.starts = starts, .chunks = chunks, .schedule = schedule});
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  }
}

// The sections of a part read the values that the previous part of the same stage left.
TEST_CASE("adjacent parts of a stage train as one device does") {
  torch::manual_seed(5);
  const auto given = built_in("kind = 'mlp'\ninputs = 9\nwidth = 10\nlayers = 8\noutputs = 5\n",
                              kRows, kPipelineMicrobatches);
  const auto one = train(given, plan_of(given, strategy_on(R"(["data", 1])", "", 4), kRows))[0];
  for (const std::string schedule : {"zbv", "v_half", "dualpipe_v"}) {
    INFO(schedule);
    const auto plan = plan_of(
        given,
        strategy_on(R"(["pipe", 2])",
                    R"(["pipeline_parallel", {"schedule": ")" + schedule + R"("}])", 4),
        kRows);
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  }
}

TEST_CASE("a missing sum over stages and a skipped microbatch are detected") {
  torch::manual_seed(5);
  const auto given = built_in(kPipelineDeep, kRows, kPipelineMicrobatches);
  const auto one = train_on_one_device(given);
  const auto plan = stages_plan(given, R"([["pipe", 2]])", {.starts = {"blocks.2"}});
  CHECK(compare(one, train(given, plan)) == "");
  const auto each = [](Program& program, const std::string& section, auto edit) {
    for (auto& s : program.sections) {
      if (s.name().starts_with(section)) edit(s.instructions);
    }
  };
  // The sum of the tied weights' gradients over the stages.
  CHECK(compare(one, train(given, plan, [&](Program& program) {
                  each(program, "step", [](auto& list) {
                    std::erase_if(list, [](const Instruction& i) {
                      return i.op == "comm::all_reduce" && axis_of(i) == "pipe:0,1";
                    });
                  });
                })) != "");
  // The sums over stages of the loss and of the gradients' squares.
  CHECK(compare(one, train(given, plan, [&](Program& program) {
                  each(program, "step", [](auto& list) {
                    for (auto& i : list) {
                      for (auto& [name, arg] : i.args) {
                        if (name == "op" && axis_of(i) == "pipe") arg = std::string("avg");
                      }
                    }
                  });
                })) != "");
  // A microbatch's gradients.
  CHECK(compare(one, train(given, plan, [&](Program& program) {
                  each(program, "backward.0", [](auto& list) {
                    std::erase_if(
                        list, [](const Instruction& i) { return i.op == "perigee::accumulate_"; });
                  });
                })) != "");
}

TEST_CASE("stages send activations forwards and gradients backwards, once a microbatch") {
  torch::manual_seed(5);
  const auto given = built_in(kPipelineDeep, kRows, kPipelineMicrobatches);
  const auto plan = stages_plan(given, R"([["data", 2], ["pipe", 2]])", {.starts = {"blocks.2"}});
  DryRuns traces;
  std::string text;
  for (int64_t rank : {0, 2}) {
    text += fmt::format(
        "rank {}\n{}", rank,
        compile::summary(compile::compile(given.graph, plan, {.clip_norm = 0.5}, rank, traces)));
  }
  // The sums over data are those of the gradients' buckets, of the loss and of the labels' count;
  // over the stages, those of loss, norm and the tied weights' gradients.
  CHECK(test::golden_difference("tests/parity/pipeline/stages_1f1b.txt", text) == "");
}

TEST_CASE("stages of dualpipe_v do not deadlock") {
  torch::manual_seed(5);
  std::string keys = kPipelineDeep;
  keys.replace(keys.find("layers = 4"), 10, "layers = 8");
  const auto given = built_in(keys, kRows, kRows);
  const auto strategy = [](const char* mesh, const char* more) {
    return fmt::format(R"([["parallel_mode", {}], ["gradient_accumulation",
                          {{"microbatches": 8}}]{}])",
                       mesh, more);
  };
  const auto one = train(given, plan_of(given, strategy(R"([["data", 1]])", ""), kRows))[0];
  const auto plan = plan_of(
      given, strategy(R"([["pipe", 4]])", R"(, ["pipeline_parallel", {"schedule": "dualpipe_v"}])"),
      kRows);
  CHECK(compare(one, train(given, plan)) == "");
}

TEST_CASE("pipelines combined with other methods train as one device does") {
  const auto check = [](const std::string& keys, const std::string& axes,
                        const std::string& methods) {
    torch::manual_seed(5);
    const auto given = built_in(keys, kRows, kPipelineMicrobatches);
    const auto with = [&](const std::string& mesh, const std::string& more) {
      return plan_of(given,
                     fmt::format(R"([["parallel_mode", {}], ["gradient_accumulation",
                                    {{"microbatches": {}}}]{}])",
                                 mesh, kPipelineMicrobatches, more),
                     kRows);
    };
    const auto one = train(given, with(R"([["data", 1]])", ""))[0];
    INFO(keys << axes << methods);
    const auto plan = with(axes, ", " + methods);
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  };
  const std::string deep = kPipelineDeep, untied = deep + "tied = false\n";
  const std::string inner = R"([["data", 2], ["pipe", 2]])",
                    outer = R"([["pipe", 2], ["data", 2]])",
                    split = R"([["tensor", 2], ["pipe", 2]])";
  check(deep, inner, R"(["pipeline_parallel", {}])");
  check(deep, outer, R"(["pipeline_parallel", {"schedule": "zb1p"}])");
  check(deep, outer, R"(["pipeline_parallel", {"schedule": "zbv"}])");
  check(deep, split, R"(["pipeline_parallel", {}], ["tensor_parallel", {}])");
  check(
      deep, split,
      R"(["pipeline_parallel", {"schedule": "interleaved"}], ["tensor_parallel", {"sequence": true}])");
  check(deep, inner,
        R"(["pipeline_parallel", {"schedule": "zb2p"}], ["checkpoint", ["blocks.*"]])");
  check(untied, inner, R"(["pipeline_parallel", {}], ["zero1", {}])");
  check(deep, inner, R"(["pipeline_parallel", {}], ["zero1", {}])");
  check(deep, inner, R"(["pipeline_parallel", {}], ["fsdp", {}])");
  check(untied, outer, R"(["pipeline_parallel", {"schedule": "interleaved"}], ["zero2", {}])");
  check(untied, inner, R"(["pipeline_parallel", {}], ["fsdp", {}])");
  check(untied, inner, R"(["pipeline_parallel", {"schedule": "zbv"}], ["fsdp", {}])");
  check(kLlama, split, R"(["pipeline_parallel", {}], ["tensor_parallel", {"sequence": true}])");
  check(kMlp, R"([["pipe", 2]])", R"(["pipeline_parallel", {}])");
  check(kMlp, R"([["pipe", 3]])", R"(["pipeline_parallel", {"starts": ["blocks.1", "head"]}])");
}

TEST_CASE("stages cast sent values exactly where the plan says so") {
  torch::manual_seed(5);
  const auto given = built_in(kPipelineDeep, kRows, kPipelineMicrobatches);
  const auto one = train_on_one_device(given);
  DryRuns traces;
  for (const char* schedule : {"1f1b", "zb1p"}) {
    INFO(schedule);
    auto plan = stages_plan(given, R"([["pipe", 2]])",
                            {.starts = {"blocks.2"}, .schedule = schedule});
    plan.pipeline.dtype = graph::DType::float64;
    const auto messages = [&] {
      std::set<std::string> dtypes;
      for (int64_t rank = 0; rank < 2; ++rank) {
        const auto program = compile::compile(given.graph, plan, {}, rank, traces);
        for (const auto& section : program.sections) {
          for (const auto& i : section.instructions) {
            if (i.op == "comm::send") {
              const auto sent = compile::operand_of(i);
              dtypes.insert(std::string(graph::name_of(program.values[sent.index].type.dtype)));
            }
          }
        }
      }
      return dtypes;
    };
    CHECK(messages() == std::set<std::string>{"float64"});
    CHECK(compare(one, train(given, plan)) == "");
    plan.pipeline.dtype = graph::DType::float32;
    CHECK(messages() == std::set<std::string>{"float32"});
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks, 1e-5) == "");
    CHECK(compare(one, ranks) != "");
    CHECK(compare_memory(given, plan, ranks) == "");
  }
}

TEST_CASE("microbatches in flight keep no low copies of parameters") {
  torch::manual_seed(5);
  const auto given = built_in(kPipelineDeep, kRows, kPipelineMicrobatches, "float32");
  const auto with = [&](const std::string& mesh, const std::string& more) {
    return plan_of(given,
                   fmt::format(R"([["parallel_mode", {}], ["half", {{"dtype": "bf16"}}],
                                  ["gradient_accumulation", {{"microbatches": {}}}]{}])",
                               mesh, kPipelineMicrobatches, more),
                   kRows);
  };
  for (const char* schedule : {"1f1b", "interleaved", "zb1p"}) {
    INFO(schedule);
    const auto plan = with(
        R"([["pipe", 2]])",
        fmt::format(R"(, ["pipeline_parallel", {{"schedule": "{}"}}])", schedule));
    DryRuns traces;
    for (int64_t rank = 0; rank < 2; ++rank) {
      const auto program = compile::compile(given.graph, plan, {}, rank, traces);
      const auto kind = [&](compile::ValueId v) {
        const auto frame = program.values[v.index].place.frame;
        return frame < 0 ? compile::Frame::Kind::scratch : program.frames[frame].kind;
      };
      int casts = 0;
      for (const auto& section : program.sections) {
        for (const auto& instruction : section.instructions) {
          if (instruction.op != "perigee::cast" || section.name() == "step") continue;
          const graph::Node node{.op = instruction.op, .args = instruction.args};
          node.each_operand([&](compile::ValueId v) {
            if (kind(v) != compile::Frame::Kind::persistent) return;
            ++casts;
            CHECK(kind(instruction.outputs.front()) != compile::Frame::Kind::microbatch);
          });
        }
      }
      CHECK(casts > 8);
    }
    const auto ranks = train(given, plan);
    CHECK(compare(train(given, with(R"([["data", 1]])", ""))[0], ranks, 1e-2) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  }
}

TEST_CASE("pipeline_parallel refuses models that it cannot divide") {
  const auto given = built_in(kPipelineDeep, kRows, kPipelineMicrobatches);
  const auto refused = [&](const std::string& mesh, const std::string& config) -> std::string {
    try {
      const auto plan = plan_of(
          given,
          fmt::format(R"([["parallel_mode", {}], ["gradient_accumulation", {{"microbatches": 4}}],
                          ["pipeline_parallel", {}]])",
                      mesh, config),
          kRows);
      plan::verify(plan, given.graph);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string two = R"([["pipe", 2]])", eight = R"([["pipe", 8]])";
  CHECK(refused(R"([["data", 2]])", "{}") ==
        "[pipeline_parallel] axis must be an axis of the mesh (data), but got \"pipe\"");
  CHECK(refused(two, R"({"schedule": "1f1p"})") ==
        "[pipeline_parallel] schedule must be one of gpipe, 1f1b, interleaved, eager_1f1b, zb1p, "
        "zb2p, zbv, "
        "v_half, v_min, dualpipe_v, looped_bfs, but got \"1f1p\", did you mean \"1f1b\"?");
  CHECK(refused(eight, "{}") ==
        "[pipeline_parallel] 8 stages of 1 part need 8 blocks, but blocks.* has 4: name "
        "starts or blocks, or make the axis smaller");
  CHECK(refused(two, R"({"starts": ["blocks.1", "blocks.2"]})") ==
        "[pipeline_parallel] starts must name the first scope of each part after the first, 1 for "
        "2 stages of 1 part, but got 2");
  CHECK(refused(two, R"({"starts": ["blocks.9"]})") ==
        "[plan] a pipeline is cut where the forward pass first reaches a scope, in the order of "
        "its starts, but it does not reach \"blocks.9\", did you mean \"blocks.0\"?");
  const std::string three = R"([["pipe", 3]])";
  CHECK(refused(three, R"({"starts": ["blocks.2", "blocks.1"]})") ==
        "[plan] a pipeline is cut where the forward pass first reaches a scope, in the order of "
        "its starts, but it does not reach \"blocks.1\" after \"blocks.2\"");
  CHECK(refused(three, R"({"starts": ["blocks.2", "blocks.2"]})") ==
        "[plan] the starts of a pipeline are different scopes, but two are \"blocks.2\"");
  CHECK(refused(two, R"({"schedule": "v_min"})") ==
        "[schedule] v_min exists for at least 4 stages, but got 2");
  CHECK(
      refused(two, R"({"costs": [1, 2]})") ==
      "[pipeline_parallel] costs must be three numbers above 0 and one of at least 0 for messages, "
      "but got [1,2]");
  CHECK(refused(two, R"({"costs": [1, 1, 1, -1]})")
            .starts_with("[pipeline_parallel] costs must be "));
}

}  // namespace
}  // namespace perigee::parity
