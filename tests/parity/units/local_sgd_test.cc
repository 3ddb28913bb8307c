// Copies of the model (strategies/data_parallel/local_sgd.lua): ranks against separately trained
// models that are averaged by hand, with negative controls.
#include <fmt/format.h>

#include "base/error.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/copies.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Program;

const std::string kPlain =
    "kind = 'gpt'\nlayers = 2\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 11\n";

plan::Plan local_plan(const Given& given, const std::string& strategy) {
  auto plan = plan_of(given, strategy, kRows);
  plan::verify(plan, given.graph);
  return plan;
}

std::string local_sgd_strategy(const std::string& axes, const std::string& config,
                               const std::string& more = "") {
  return R"([["parallel_mode", )" + axes + R"(], ["local_sgd", )" + config + "]" + more + "]";
}

const std::string kLocalSgdTwo = R"([["data", 2]])",
                  kAccumulate = R"(, ["gradient_accumulation", {"microbatches": 2}])";

const compile::StepSpec kClipped{.clip_norm = 0.5};

}  // namespace

TEST_CASE("local SGD equals separately trained models that are averaged") {
  for (const int64_t microbatches : {1, 2}) {
    torch::manual_seed(5);
    const auto given = built_in(kPlain, kRows, 2 * microbatches);
    const auto more = microbatches > 1 ? kAccumulate : "";
    for (const int64_t every : {1, 2, 3}) {
      for (const bool states : {false, true}) {
        INFO(microbatches << " microbatches, every " << every << (states ? ", states" : ""));
        const auto plan = local_plan(
            given, local_sgd_strategy(
                       kLocalSgdTwo, fmt::format(R"({{"every": {}, "states": {}}})", every, states),
                       more));
        const auto ranks = train(given, plan, {}, kClipped, 5);
        const auto copies = train_copies(given, {2, microbatches, kRows}, {every, states}, kClipped,
                                         5);
        CHECK(compare_copies(plan, copies, ranks) == "");
        CHECK(compare_memory(given, plan, ranks) == "");
        if (every == 1) continue;
        // Copies differ except directly after an average.
        CHECK(compare_copies(plan, {copies[1], copies[0]}, ranks) != "");
        CHECK(compare_copies(
                  plan,
                  train_copies(given, {2, microbatches, kRows}, {every + 1, states}, kClipped, 5),
                  ranks) != "");
      }
    }
  }
}

TEST_CASE("states of optimizers that step tensor by tensor are averaged, too") {
  torch::manual_seed(5);
  const auto given = built_in(kPlain, kRows, 4);
  for (const std::string optimizer : {"muon", "adafactor"}) {
    const compile::StepSpec spec{.optimizer = optimizer};
    const auto copies = train_copies(given, {2, 2, kRows}, {2, true}, spec, 5),
               apart = train_copies(given, {2, 2, kRows}, {2, false}, spec, 5);
    for (const auto& [axes, more] : std::vector<std::pair<std::string, std::string>>{
             {kLocalSgdTwo, ""},
             {R"([["zero", 2], ["data", 2]])", R"(, ["zero1", {"axis": "zero"}])"},
             {R"([["zero", 2], ["data", 2]])", R"(, ["fsdp", {"axis": "zero"}])"}}) {
      CAPTURE(optimizer, more);
      const auto plan = local_plan(
          given, local_sgd_strategy(axes, R"({"every": 2, "states": true})", kAccumulate + more));
      const auto ranks = train(given, plan, {}, spec, 5);
      // Keys' biases have no gradient but rounding errors, which adafactor normalises.
      CHECK(compare_copies(plan, copies, ranks, 1e-8) == "");
      CHECK(compare_copies(plan, apart, ranks) != "");
    }
  }
}

TEST_CASE("a missing average, or a sum for an average, is detected") {
  torch::manual_seed(5);
  const auto given = built_in(kPlain, kRows, 2);
  const auto plan = local_plan(given, local_sgd_strategy(kLocalSgdTwo, R"({"every": 2})"));
  const auto copies = train_copies(given, {2, 1, kRows}, {2}, kClipped, 4);
  const auto edited = [&](const std::function<void(compile::Instruction&)>& edit) {
    return compare_copies(plan, copies,
                          train(
                              given, plan,
                              [&](Program& program) {
                                for (auto& section : program.sections) {
                                  if (section.name() != "average.2") continue;
                                  for (auto& i : section.instructions) edit(i);
                                  std::erase_if(section.instructions, [](const auto& i) {
                                    return i.op == "perigee::none";
                                  });
                                }
                              },
                              kClipped, 4));
  };
  CHECK(edited([](auto&) {}) == "");
  CHECK(edited([](auto& i) { i.op = "perigee::none"; }) != "");
  CHECK(edited([](auto& i) {
          for (auto& [name, arg] : i.args) {
            if (name == "op") arg = std::string("sum");
          }
        }) != "");
  // In every step.
  CHECK(compare_copies(plan, copies,
                       train(
                           given, plan,
                           [](Program& program) {
                             for (auto& run : program.order) run.every = 1;
                           },
                           kClipped, 4)) != "");
}

TEST_CASE("copies averaged after every step of sgd equal data parallelism, with dropout") {
  torch::manual_seed(5);
  const compile::StepSpec sgd{.optimizer = "sgd"};
  const auto whole = built_in(kGpt, kRows, 1);
  torch::manual_seed(5);
  const auto half = built_in(kGpt, kRows, 2);
  auto labels = whole.inputs.at("labels");  // all ranks have equally many
  labels.copy_(at::randint(0, 11, labels.sizes(), at::kLong));
  half.inputs.at("labels").copy_(labels);
  const auto data = train(whole, plan_of(whole, R"([["parallel_mode", [["data", 2]]]])", kRows), {},
                          sgd, 3);
  const auto ranks = train(
      half, local_plan(half, local_sgd_strategy(kLocalSgdTwo, R"({"every": 1})")), {}, sgd, 3);
  auto expected = data[0];
  expected.norms = ranks[0].norms;  // the average of norms is not the norm of the average
  CHECK(compare(expected, ranks) == "");
}

TEST_CASE("copies combined with other methods train as separate models do") {
  torch::manual_seed(5);
  const auto given = built_in(kPlain, kRows, 4);
  const auto copies = train_copies(given, {2, 2, kRows}, {2}, kClipped, 3);
  for (const auto& [axes, more] : std::vector<std::pair<std::string, std::string>>{
           {R"([["tensor", 2], ["data", 2]])", R"(, ["tensor_parallel", {}])"},
           {R"([["zero", 2], ["data", 2]])", R"(, ["fsdp", {"axis": "zero"}])"},
           {R"([["zero", 2], ["data", 2]])", R"(, ["zero1", {"axis": "zero"}])"},
           {R"([["data", 2], ["zero", 2]])", R"(, ["zero2", {"axis": "zero"}])"},
           {R"([["pipe", 2], ["data", 2]])", R"(, ["pipeline_parallel", {}])"},
           {R"([["sequence", 2], ["data", 2]])", R"(, ["sequence_parallel", {}])"},
           {kLocalSgdTwo, R"(, ["checkpoint", ["blocks.*"]])"}}) {
    INFO(axes << more);
    const auto plan = local_plan(given,
                                 local_sgd_strategy(axes, R"({"every": 2})", kAccumulate + more));
    const auto ranks = train(given, plan, {}, kClipped, 3);
    CHECK(compare_copies(plan, copies, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  }
}

TEST_CASE("copies are averaged at each axis's interval, and excluded parameters never") {
  torch::manual_seed(5);
  const auto given = built_in(kPlain, kRows, 4);
  auto plan = local_plan(given, local_sgd_strategy(R"([["data", 2], ["zero", 2]])",
                                                   R"({"axis": "data,zero", "every": 4})"));
  CHECK(plan::copies_of(plan) == 4);
  const auto copies = train_copies(given, {4, 1, kRows}, {4}, kClipped, 5);
  CHECK(compare_copies(plan, copies, train(given, plan, {}, kClipped, 5)) == "");
  auto sooner = plan;
  sooner.averages.push_back({"data", 2, plan.averages[0].parameters});
  const auto ranks = train(given, sooner, {}, kClipped, 2);
  CHECK(compare(ranks[0], ranks[1]) != "");  // their states differ
  const auto weight = [&](size_t rank) {
    return ranks[rank].tensors.find("blocks.0.norm1.weight")->second.first;
  };
  CHECK(weight(0).equal(weight(1)));
  CHECK(weight(2).equal(weight(3)));
  CHECK(!weight(0).equal(weight(2)));

  const auto two = built_in(kPlain, kRows, 2);
  auto kept = local_plan(two, local_sgd_strategy(kLocalSgdTwo, R"({"every": 2})"));
  std::erase(kept.averages[0].parameters, "blocks.1.norm2.weight");
  REQUIRE(kept.averages[0].parameters.size() + 1 ==
          local_plan(two, local_sgd_strategy(kLocalSgdTwo, "{}")).averages[0].parameters.size());
  const auto some = train_copies(two, {2, 1, kRows}, {2, false, "blocks.1.norm2.weight"}, kClipped,
                                 4);
  CHECK(compare_copies(kept, some, train(two, kept, {}, kClipped, 4)) == "");
}

TEST_CASE("copies over axes of another method are refused") {
  torch::manual_seed(5);
  const auto given = built_in(kPlain, kRows, 2, "float32");
  const auto why = [&](const std::string& axes, const std::string& config,
                       const std::string& more = "") -> std::string {
    try {
      local_plan(given, local_sgd_strategy(axes, config, more));
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  };
  using Catch::Contains;
  CHECK(why(kLocalSgdTwo, "{}") == "nothing");
  for (const std::string method : {"zero1", "zero2", "fsdp"}) {
    CHECK_THAT(why(kLocalSgdTwo, "{}", ", \"" + method + "\""),
               Contains("copies") && Contains("zero1"));
  }
  CHECK_THAT(
      why(R"([["tensor", 2], ["data", 2]])", R"({"axis": "tensor"})", R"(, "tensor_parallel")"),
      Contains("sharded over an axis of copies"));
  CHECK_THAT(
      why(R"([["pipe", 2], ["data", 2]])", R"({"axis": "pipe"})", R"(, "pipeline_parallel")"),
      Contains("all stages"));
  CHECK_THAT(why(kLocalSgdTwo, R"({"axis": "dta"})"), Contains("did you mean \"data\""));
  CHECK_THAT(why(kLocalSgdTwo, R"({"every": 0})"), Contains("every must be at least 1"));
  CHECK_THAT(why(kLocalSgdTwo, R"({"match": "blok.*"})"), Contains("matches no parameter"));
  CHECK_THAT(why(kLocalSgdTwo, "{}", R"(, ["amp_native", {"dtype": "fp16"}])"),
             Contains("bfloat16"));
  CHECK_THAT(why(kLocalSgdTwo, "{}", R"(, ["grad_comm", {"clip": "before"}])"),
             Contains("clip_first"));
}

}  // namespace perigee::parity
