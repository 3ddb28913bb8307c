// expert_parallel: experts on other ranks than their tokens compute the results of one device.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/parity/support/support.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Instruction;
using compile::Program;

// Six experts; a batch of few tokens leaves some of them without a token.
std::string moe(const std::string& more) {
  return "kind = 'moe'\nlayers = 2\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 12\n"
         "experts = 6\n" +
         more;
}

plan::Plan expert_plan_of(const Given& given, const std::string& mesh, const std::string& methods) {
  return plan_of(given, fmt::format(R"([["parallel_mode", {}], {}])", mesh, methods), kRows);
}

Outcome one_device(const Given& given, const std::string& microbatches) {
  const auto methods = fmt::format(R"(["gradient_accumulation", {{"microbatches": {}}}])",
                                   microbatches);
  return train(given, expert_plan_of(given, R"([["data", 1]])", methods))[0];
}

const char* const kExperts = R"(["expert_parallel", {}])";

TEST_CASE("sharded experts train as on one device") {
  const auto check = [](const std::string& keys, const std::string& mesh,
                        const std::string& methods, int64_t microbatches = 1) {
    torch::manual_seed(5);
    const auto given = built_in(moe(keys), kRows, microbatches);
    const auto count = std::to_string(microbatches);
    const auto one = one_device(given, count);
    const auto plan = expert_plan_of(
        given, mesh,
        fmt::format(R"({}, ["gradient_accumulation", {{"microbatches": {}}}])", methods, count));
    INFO(keys << mesh << methods);
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  };
  const std::string two = R"([["expert", 2]])", both = R"([["expert", 2], ["data", 2]])";
  for (const char* keys : {"", "capacity_per = 'sample'\n", "capacity = 0.4\n",
                           "capacity = 0\ndropless = true\ncapacity_per = 'sample'\ntop_k = 1\n"}) {
    check(keys, two, kExperts);
    check(keys, both, kExperts, 2);
  }
  const std::string sample = "capacity_per = 'sample'\n";
  check(sample, R"([["tensor", 3], ["expert", 2]])",
        R"(["expert_parallel", {"tensor": "tensor"}], ["tensor_parallel", {"column": [
            "blocks.*.attn.qkv"], "row": ["blocks.*.attn.out"]}])");
  check(sample, R"([["tensor", 2], ["expert", 2]])",
        R"(["tensor_parallel", {"sequence": true}], ["expert_parallel", {}])");
  check(sample, R"([["tensor", 2], ["data", 2]])",
        R"(["expert_parallel", {"axis": "tensor"}], ["tensor_parallel", {}])");
  check(sample, R"([["expert", 2], ["tensor", 3]])",
        R"(["expert_parallel", {"axis": ["expert", "tensor"]}], ["tensor_parallel", {}])");
  check(sample, R"([["data", 2]])", R"(["expert_parallel", {"axis": "data"}], ["zero1", {}])");
  check(sample, both, R"(["expert_parallel", {}], ["fsdp", {}], ["checkpoint", ["blocks.*"]])", 2);
  check(sample, R"([["expert", 2], ["pipe", 2]])",
        R"(["expert_parallel", {}], ["pipeline_parallel", {"starts": ["blocks.1"]}])", 2);
  check(sample, R"([["context", 2], ["expert", 2]])",
        R"(["expert_parallel", {}], ["context_parallel", {}])");
}

// Attention is sharded over tensor axes; experts are distributed over the same ranks differently.
TEST_CASE("experts and other layers are sharded over axes of their own") {
  torch::manual_seed(5);
  const auto check = [](const std::string& keys, const std::string& mesh,
                        const std::string& methods, int64_t microbatches = 1) {
    torch::manual_seed(5);
    const auto given = built_in(moe(keys), kRows, microbatches);
    const auto count = std::to_string(microbatches);
    const auto plan = expert_plan_of(
        given, mesh,
        fmt::format(R"({}, ["gradient_accumulation", {{"microbatches": {}}}])", methods, count));
    INFO(keys << mesh << methods);
    const auto ranks = train(given, plan);
    CHECK(compare(one_device(given, count), ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  };
  const std::string layers = R"(, ["tensor_parallel", {"sequence": true, "experts": false}])";
  const std::string inner = R"([["tensor", 2], ["tensor2", 3]])";
  for (const char* keys : {"", "capacity_per = 'sample'\n"}) {
    // Fewer ranks shard an expert than shard other layers.
    check(keys, inner, R"(["expert_parallel", {"tensor": "tensor", "axis": "tensor2"}])" + layers);
    check(keys, inner, R"(["expert_parallel", {"tensor": "tensor", "axis": []}])" + layers);
    check(keys, R"([["tensor", 3], ["tensor2", 2]])",
          R"(["expert_parallel", {"axis": ["tensor", "tensor2"]}])" + layers);
    check(keys, R"([["tensor", 2]])", R"(["expert_parallel", {"axis": []}])" + layers);
    // More ranks shard an expert: these ranks have tokens of their own.
    check(keys, R"([["expert2", 2], ["expert", 2]])",
          R"(["expert_parallel", {"tensor": "expert2"}])");
    check(keys, R"([["tensor", 2], ["expert2", 2]])",
          R"(["expert_parallel", {"tensor": ["tensor", "expert2"], "axis": []}])" + layers);
  }
  check("capacity_per = 'sample'\n", R"([["expert2", 2], ["expert", 2], ["data", 2]])",
        R"(["expert_parallel", {"tensor": "expert2"}], ["zero1", {}])");
  check("capacity_per = 'sample'\n", R"([["tensor", 2], ["expert2", 2], ["expert", 2]])",
        R"(["expert_parallel", {"tensor": ["tensor", "expert2"]}])" + layers);
  // Experts distributed over the ranks that shard the sequence.
  check("", R"([["context", 3]])",
        R"(["expert_parallel", {"axis": "context"}], ["context_parallel", {"attention": "ring"}])");
  check("", R"([["context", 3], ["expert", 2]])",
        R"(["expert_parallel", {"axis": ["context", "expert"]}],
           ["context_parallel", {"attention": "ring"}])");
}

// For each of two layers: the number of rows of each rank, the number of taken places, and the
// places; the rows to the experts and back, in each pass.
TEST_CASE("sharded experts exchange the expected number of messages") {
  torch::manual_seed(5);
  const auto given = built_in(moe("capacity_per = 'sample'\ntop_k = 1\n"), kRows);
  DryRuns traces;
  const auto program = compile::compile(
      given.graph, expert_plan_of(given, R"([["expert", 2]])", kExperts), {}, 0, traces);
  CHECK(exchanges_of(program) == std::map<std::string, int>{{"forward all_gather", 2},
                                                            {"forward all_to_all", 2},
                                                            {"forward exchange", 6},
                                                            {"backward exchange", 4}});
}

TEST_CASE("a program that loses rows of experts is detected") {
  torch::manual_seed(5);
  const auto given = built_in(moe("capacity_per = 'sample'\n"), kRows);
  const auto one = one_device(given, "1");
  const auto plan = expert_plan_of(given, R"([["expert", 2]])", kExperts);
  const auto wrong = [&](const std::function<void(Instruction&)>& change) {
    std::atomic<int> changed = 0;
    const auto edit = [&](Program& program) {
      for (auto& section : program.sections) {
        for (auto& i : section.instructions) {
          const auto before = i.args;
          change(i);
          changed += before != i.args;
        }
      }
    };
    return compare(one, train(given, plan, edit)) != "" && changed > 0;
  };
  const auto set = [](Instruction& i, const std::string& op, const std::string& name,
                      graph::Arg to) {
    if (i.op != op) return;
    for (auto& [key, arg] : i.args) {
      if (key == name) arg = to;
    }
  };
  CHECK(wrong([&](Instruction& i) { set(i, "perigee::expert_slots", "places", int64_t{1}); }));
  CHECK(wrong([&](Instruction& i) { set(i, "perigee::route", "group", int64_t{0}); }));
  // Rows that are not returned.
  const auto lose = [](Program& program) {
    for (auto& section : program.sections) {
      std::erase_if(section.instructions, [](const Instruction& i) {
        return i.op == "comm::exchange" &&
               std::find(i.args.begin(), i.args.end(),
                         std::pair<std::string, graph::Arg>("back", true)) != i.args.end();
      });
    }
  };
  CHECK(compare(one, train(given, plan, lose)) != "");
  torch::manual_seed(5);
  const auto dropless = built_in(
      moe("capacity = 0\ndropless = true\ncapacity_per = 'sample'\ntop_k = 1\n"), kRows);
  CHECK(compare(one_device(dropless, "1"),
                train(dropless, expert_plan_of(dropless, R"([["expert", 2]])", kExperts), lose)) !=
        "");
}

TEST_CASE("a dropless step fails if a token exceeds the capacity") {
  torch::manual_seed(5);
  const auto given = built_in(moe("capacity = 0.4\ndropless = true\n"), kRows);
  CHECK_THROWS_WITH(train(given, expert_plan_of(given, R"([["expert", 2]])", kExperts)),
                    Catch::Contains("model.capacity"));
}

TEST_CASE("expert_parallel refuses experts that it cannot distribute") {
  torch::manual_seed(5);
  const auto given = built_in(moe(""), kRows);
  const auto refusal = [](const Given& model, const std::string& mesh, const std::string& methods) {
    try {
      expert_plan_of(model, mesh, methods);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(refusal(given, R"([["expert", 4]])", kExperts) ==
        "[expert_parallel] experts must divide over the 4 ranks, but blocks.0.experts.up has 6");
  CHECK(refusal(given, R"([["data", 2]])", kExperts) ==
        "[expert_parallel] experts are sharded over axes of the mesh (data), but got "
        "\"expert\"");
  CHECK(refusal(given, R"([["data", 2], ["expert", 2]])", kExperts) ==
        "[expert_parallel] axis expert of the experts must come before the other axes of the batch "
        "in parallel_mode, but data comes before it");
  CHECK(refusal(given, R"([["expert", 2], ["tensor", 2]])",
                R"(["expert_parallel", {"axis": ["expert", "tensor"], "tensor": "tensor"}])") ==
        "[expert_parallel] an axis shards the experts or splits each of them, but tensor is given "
        "for both");
  CHECK(
      refusal(given, R"([["tensor", 10], ["tensor2", 10]])",
              R"(["expert_parallel", {"axis": [], "tensor": ["tensor", "tensor2"]}])") ==
      "[expert_parallel] dim 2 of blocks.0.experts.up is split over 100 ranks of tensor, tensor2, "
      "but has 40");
  CHECK(refusal(given, R"([["tensor", 2]])", R"(["expert_parallel", {"axis": "tensor,tensor"}])") ==
        "[expert_parallel] axis must name axes such as \"data,context\" or a list, each once, "
        "but got \"tensor,tensor\"");
  CHECK(refusal(built_in(kGpt, kRows), R"([["expert", 2]])", kExperts) ==
        "[expert_parallel] a mixture of experts is needed (model.kind = \"moe\", or a model that "
        "uses perigee::experts), but the model has none");
}

}  // namespace
}  // namespace perigee::parity
