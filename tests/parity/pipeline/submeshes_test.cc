// Stages of unequal submeshes train as one device does.
#include "tests/parity/support/submeshes.h"

#include <random>

#include "base/error.h"
#include "compile/compile.h"
#include "tests/parity/support/built_in.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Instruction;
using compile::Program;

constexpr int64_t kSubmeshesRows = 24;

const char* const kDeep =
    "kind = 'gpt'\nlayers = 6\nwidth = 24\nheads = 6\nhidden = 48\nvocab = 12\ndropout = 0.1\n";

std::string axis_of(const Instruction& instruction) {
  for (const auto& [name, arg] : instruction.args) {
    if (name == "axis") return std::get<std::string>(arg);
  }
  return "";
}

TEST_CASE("stages of 2 and 1 ranks train a GPT as one device does") {
  torch::manual_seed(5);
  const auto given = built_in(kDeep, kSubmeshesRows, 4);
  const auto one = train_on_one_device(given, 4, kSubmeshesRows);
  for (const auto& submeshes : std::vector<Submeshes>{{{{"data", 2}}, {}},
                                                      {{}, {{"data", 2}}},
                                                      {{{"data", 2}}, {{"tensor", 2}}},
                                                      {{{"tensor", 2}}, {{"data", 3}}},
                                                      {{{"data", 3}}, {{"data", 2}}},
                                                      {{{"tensor", 2}}, {}, {{"data", 2}}}}) {
    INFO(text_of(submeshes));
    const bool splits = has_axis(submeshes, "tensor");
    const auto plan = plan_of(
        given, staged(submeshes, "{}", splits ? R"("tensor_parallel")" : "", 4), kSubmeshesRows);
    CHECK(plan::parse(plan::print(plan)) == plan);
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  }
}

TEST_CASE("a missing message or sum between unequal stages is detected") {
  torch::manual_seed(5);
  const auto given = built_in(kDeep, kSubmeshesRows, 4);
  const auto one = train_on_one_device(given, 4, kSubmeshesRows);
  const auto plan = plan_of(given, staged({{{"data", 2}}, {}}, "{}", "", 4), kSubmeshesRows);
  const auto edited = [&](auto edit) {
    return compare(one, train(given, plan, [&](Program& program) {
                     for (auto& section : program.sections) edit(program.rank, section);
                   }));
  };
  CHECK(edited([](int64_t, auto&) {}) == "");
  // The order of two pieces that one rank receives.
  CHECK(edited([](int64_t, auto& section) {
          for (auto& i : section.instructions) {
            if (i.op != "aten::cat") continue;
            for (auto& [name, arg] : i.args) {
              if (name != "tensors") continue;
              auto& list = std::get<std::vector<graph::ValueId>>(arg);
              std::swap(list.front(), list.back());
            }
          }
        }) != "");
  // One rank of a stage contributes the norm and the loss.
  CHECK(edited([](int64_t, auto& section) {
          for (auto& i : section.instructions) {
            for (auto& [name, arg] : i.args) {
              if (name == "op" && axis_of(i) == "data,pipe") arg = std::string("avg");
            }
          }
        }) != "");
  // The stages' contributions to the gradient of tied weights.
  CHECK(edited([](int64_t, auto& section) {
          std::erase_if(section.instructions, [](const Instruction& i) {
            return i.op == "comm::all_reduce" && axis_of(i) == "pipe:0,1";
          });
        }) != "");
}

TEST_CASE("methods that require homogeneous stages refuse unequal ones") {
  const auto given = built_in(kDeep, kSubmeshesRows, 2);
  auto plan = plan_of(given, staged({{{"data", 2}}, {}}, "{}", "", 2), kSubmeshesRows);
  const auto refusal = [&](auto edit) -> std::string {
    auto changed = plan;
    edit(changed);
    try {
      plan::verify(changed, given.graph);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(refusal([](auto&) {}) == "");
  CHECK_THAT(refusal([](auto& p) { p.pipeline = {}; }),
             Catch::Contains("are the stages of a pipeline over pipe, but there is none"));
  CHECK_THAT(refusal([](auto& p) { p.communication.clip_first = true; }),
             Catch::Contains("clip after the reduction, or make the submeshes identical"));
  CHECK_THAT(refusal([](auto& p) { p.communication.sum = true; }),
             Catch::Contains("leave grad_comm's reduce"));
  CHECK_THAT(refusal([](auto& p) { p.forbidden = {"replicated_parameters"}; }),
             Catch::Contains("leave it out of forbid"));
}

TEST_CASE("random stages of unequal submeshes train as one device does") {
  const auto seed = Catch::rngSeed() == 0 ? 7u : Catch::rngSeed();
  std::mt19937 random(seed);
  struct Model {
    const char* keys;
    bool splits;
  };
  const Model models[] = {{kDeep, true},
                          {"kind = 'mlp'\ninputs = 9\nwidth = 12\nlayers = 9\noutputs = 5\n", true},
                          {kResnet, false}};
  for (int k = 0; k < 18; ++k) {
    const auto& model = models[static_cast<size_t>(k) % std::size(models)];
    const bool resnet = !model.splits;
    const int64_t stages = resnet ? 2 : 2 + static_cast<int64_t>(random() % 2);
    const auto submeshes = random_submeshes(random, stages, 6, model.splits);
    const std::vector<std::string> schedules = {"{}", R"({"schedule": "gpipe"})",
                                                R"({"schedule": "interleaved", "chunks": 2})",
                                                R"({"schedule": "zb1p"})"};
    // Batch norm couples samples: as one microbatch.
    const int64_t microbatches = resnet ? 1 : 4;
    auto pipeline = schedules[random() % schedules.size()];
    const bool uneven = stages == 3 && pipeline.find("interleaved") != std::string::npos;
    if (resnet || uneven) pipeline = "{}";
    std::string methods = "";
    const bool data = has_axis(submeshes, "data");
    if (has_axis(submeshes, "tensor")) methods += R"("tensor_parallel")";
    const std::vector<std::string> units = {"", "zero1", "zero2", "fsdp"};
    const auto& unit = units[random() % units.size()];
    if (data && !unit.empty()) methods += (methods.empty() ? "\"" : ", \"") + unit + "\"";
    if (model.splits && random() % 3 == 0 && model.keys == kDeep) {
      methods += std::string(methods.empty() ? "" : ", ") + R"(["checkpoint", ["blocks.*"]])";
    }
    const auto strategy = staged(submeshes, pipeline, methods, microbatches);
    INFO("seed " << seed << ", " << k << ": " << model.keys << strategy);
    torch::manual_seed(5);
    const auto given = built_in(model.keys, kSubmeshesRows, microbatches);
    const auto plan = plan_of(given, strategy, kSubmeshesRows);
    const auto one = train_on_one_device(given, microbatches, kSubmeshesRows);
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  }
}

}  // namespace
}  // namespace perigee::parity
