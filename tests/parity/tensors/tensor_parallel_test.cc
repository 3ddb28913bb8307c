// The method tensor_parallel: the built-in models train as on one device, with negative controls.
#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "simulate/memory_kinds.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Instruction;
using compile::Program;

plan::Plan tensor_parallel_plan_of(const Given& given, const std::string& strategy) {
  return plan_of(given, strategy, kRows);
}

std::string parallel(const std::string& axes, const std::string& config) {
  return R"([["parallel_mode", )" + axes + R"(], ["tensor_parallel", )" + config + "]";
}

const std::string kTensorParallelTwo = R"([["tensor", 2]])",
                  kThree = R"([["tensor", 3], ["data", 2]])",
                  kOuter = R"([["data", 2], ["tensor", 2]])",
                  kWithSequence = R"({"sequence": true})";

TEST_CASE("tensor_parallel trains the built-in models as one device does") {
  std::string untied = kGpt;
  untied += "tied = false\n";
  const auto check = [](const std::string& keys, const std::string& axes, const std::string& config,
                        const std::string& more = "") {
    torch::manual_seed(5);
    const bool accumulates = more.find("accumulation") != std::string::npos;
    const auto given = built_in(keys, kRows, accumulates ? 2 : 1);
    const auto plan = tensor_parallel_plan_of(given, parallel(axes, config) + more + "]");
    INFO(keys << axes << config << more);
    auto one_device = tensor_parallel_plan_of(given, R"([["parallel_mode", [["data", 1]]]])");
    one_device.microbatches = plan.microbatches;
    CHECK(compare(train(given, one_device)[0], train(given, plan)) == "");
  };
  for (const auto& keys : {std::string(kGpt), untied, std::string(kLlama)}) {
    check(keys, kTensorParallelTwo, "{}");
    check(keys, kThree, kWithSequence);
  }
  check(kGpt, kOuter, kWithSequence);
  check(kMoe, kTensorParallelTwo, "{}");
  check(kMoe, kTensorParallelTwo, kWithSequence);
  check(kMlp, kThree, "{}");
  check(kGpt, kOuter, R"({"column": ["blocks.*.mlp.up"], "row": ["blocks.1.mlp.down.weight"]})");
  check(kGpt, kOuter, "{}", R"(, ["gradient_accumulation", {"microbatches": 2}])");
  for (const char* config : {"{}", R"({"sequence": true})"}) {
    check(kGpt, kTensorParallelTwo, config, R"(, ["checkpoint", ["blocks.*"]])");
  }
}

TEST_CASE("layers sharded over several axes train as on one device") {
  const auto check = [](const std::string& keys, const std::string& axes,
                        const std::string& methods) {
    torch::manual_seed(5);
    const auto given = built_in(keys, kRows);
    const auto plan = tensor_parallel_plan_of(
        given, R"([["parallel_mode", )" + axes + "], " + methods + "]");
    INFO(keys << axes << methods);
    const auto one_device = tensor_parallel_plan_of(given, R"([["parallel_mode", [["data", 1]]]])");
    const auto ranks = train(given, plan);
    CHECK(compare(train(given, one_device)[0], ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  };
  const std::string two = R"([["tensor", 2], ["tensor2", 3]])";
  for (const auto& keys : {kGpt, kLlama, kMoe}) {
    check(keys, two, R"(["tensor_parallel", {}])");
    check(keys, two, R"(["tensor_parallel", {"sequence": true}])");
  }
  check(kMlp, two, R"(["tensor_parallel", {}])");
  check(kGpt, R"([["tensor2", 3], ["data", 2], ["tensor", 2]])",
        R"(["tensor_parallel", {"axis": "tensor,tensor2", "sequence": true}], ["zero1", {}])");
  check(kGpt, two,
        R"(["tensor_parallel", {"axis": ["tensor2"], "column": ["blocks.*.mlp.up"],
           "row": ["blocks.*.mlp.down"]}])");
  check(kGpt, two,
        R"(["tensor_parallel", {"sequence": true}], ["overlap", {"slices": 2, "bulk": ["sums"]}])");
  check(kGpt, R"([["tensor", 2], ["tensor2", 2]])", R"(["tensor_parallel", {"planned": true}])");
  check(kGpt, R"([["sequence", 2], ["sequence2", 3]])", R"(["sequence_parallel", {}])");
  check(kGpt, R"([["tensor", 2], ["context", 3]])",
        R"(["tensor_parallel", {}], ["context_parallel", {"attention": "ring"}])");
}

TEST_CASE("a missing collective, or an average for a sum, of tensor_parallel is detected") {
  torch::manual_seed(5);
  const auto given = built_in(kGpt, kRows);
  const auto one = train(
      given, tensor_parallel_plan_of(given, R"([["parallel_mode", [["data", 1]]]])"))[0];
  const auto plan = tensor_parallel_plan_of(given, parallel(kTensorParallelTwo, "{}") + "]");
  CHECK(compare(one, train(given, plan)) == "");
  const auto without = [](graph::Phase phase) {
    return [phase](Program& program) {
      for (auto& section : program.sections) {
        std::erase_if(section.instructions, [&](const Instruction& i) {
          return i.kind == Instruction::Kind::collective && i.phase == phase;
        });
      }
    };
  };
  CHECK(compare(one, train(given, plan, without(graph::Phase::forward))) != "");
  CHECK(compare(one, train(given, plan, without(graph::Phase::backward))) != "");
  CHECK(compare(one, train(given, plan, [](Program& program) {
                  for (auto& section : program.sections) {
                    for (auto& instruction : section.instructions) {
                      for (auto& [name, arg] : instruction.args) {
                        if (name == "op" && arg == graph::Arg(std::string("sum"))) {
                          arg = std::string("avg");
                        }
                      }
                    }
                  }
                })) != "");
}

// The bytes that a rank keeps for its backward pass.
double saved(const Program& program) {
  for (const auto& kind : simulate::memory_by_kind(program)) {
    if (kind.name == "saved activations") return kind.bytes;
  }
  return 0;
}

TEST_CASE("with sequence sharding ranks keep their parts and re-gather them") {
  for (const char* keys : {kGpt, kLlama}) {
    INFO(keys);
    torch::manual_seed(5);
    const auto given = built_in(keys, kRows);
    const auto one = train(
        given, tensor_parallel_plan_of(given, R"([["parallel_mode", [["data", 1]]]])"))[0];
    const auto plan = tensor_parallel_plan_of(given,
                                              parallel(kTensorParallelTwo, kWithSequence) + "]");
    DryRuns traces;
    const auto program = compile::compile(given.graph, plan, {}, 0, traces);
    std::set<int32_t> gathered;
    const auto root = [&](compile::ValueId v) {
      const auto base = program.values[v.index].view_of;
      return (base.defined() ? base : v).index;
    };
    for (const auto& section : program.sections) {
      for (const auto& instruction : section.instructions) {
        if (instruction.phase == graph::Phase::forward) {
          if (instruction.op == "comm::all_gather")
            gathered.insert(root(instruction.outputs.front()));
          continue;
        }
        const graph::Node node{.op = instruction.op, .args = instruction.args};
        node.each_operand([&](compile::ValueId v) {
          if (section.name() != "step") CHECK(!gathered.contains(root(v)));
        });
      }
    }
    CHECK(gathered.size() >= 4);  // two in each block
    const auto whole = compile::compile(
        given.graph, tensor_parallel_plan_of(given, parallel(kTensorParallelTwo, "{}") + "]"), {},
        0, traces);
    CHECK(saved(program) < 0.8 * saved(whole));
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
    CHECK(compare(one, train(given, plan, [](Program& wrong) {
                    for (auto& section : wrong.sections) {
                      std::erase_if(section.instructions, [](const Instruction& i) {
                        return i.op == "comm::all_gather" && i.phase == graph::Phase::backward;
                      });
                    }
                  })) != "");
  }
}

TEST_CASE("small sums over tensor ranks do not wait for the reduction of units") {
  const auto given = built_in(kGpt, kRows);
  const auto plan = tensor_parallel_plan_of(
      given, parallel(kOuter, kWithSequence) + R"(, ["zero1", {"match": "blocks.*"}]])");
  DryRuns traces;
  const auto program = compile::compile(given.graph, plan, {}, 0, traces);
  const auto base = [&](const graph::Node& node) {
    const auto v = node.get<compile::ValueId>("self", {});
    const auto whole = program.values[v.index].view_of;
    return (whole.defined() ? whole : v).index;
  };
  int sums = 0;
  for (const auto& section : program.sections) {
    if (section.name() == "step") continue;
    std::set<int32_t> reduced;  // by units
    for (const auto& instruction : section.instructions) {
      const graph::Node node{.op = instruction.op, .args = instruction.args};
      const auto axis = node.get<std::string>("axis", "");
      if (node.op == "comm::reduce_scatter" && axis == "data") reduced.insert(base(node));
      if (node.op != "comm::all_reduce" || axis != "tensor") continue;
      CHECK_FALSE(reduced.contains(base(node)));
      ++sums;
    }
  }
  // One sum of the parameters that tensor ranks replicate in each block, two for other layers.
  CHECK(sums >= 4);
  CHECK(sums <= 6);
}

TEST_CASE("a sharded vocabulary's gradient has only the rank's rows, in any precision") {
  // More rows than tokens: a sum of rows over ranks costs more.
  constexpr int64_t kVocabulary = 1000;
  for (const std::string tied : {"", "tied = false\n"}) {
    auto keys = kGpt + tied;
    keys.replace(keys.find("vocab = 11"), 10, fmt::format("vocab = {}", kVocabulary));
    const auto given = built_in(keys, kRows);
    for (const std::string precision :
         {"", R"(, ["half", {"dtype": "bf16"}])", R"(, ["amp_native", {"dtype": "bf16"}])"}) {
      INFO(tied << precision);
      const auto plan = tensor_parallel_plan_of(
          given, parallel(kTensorParallelTwo, kWithSequence) + precision + "]");
      DryRuns traces;
      const auto program = compile::compile(given.graph, plan, {}, 1, traces);
      int seen = 0;
      for (const auto& section : program.sections) {
        for (const auto& instruction : section.instructions) {
          const bool counts = instruction.op == "aten::embedding_dense_backward" ||
                              instruction.op == "perigee::embedding_backward_";
          if (!counts || instruction.scope != "embed") continue;
          const auto& made = program.values[instruction.outputs.front().index].type;
          CHECK(made.shape[0] == kVocabulary / 2);
          ++seen;
        }
      }
      CHECK(seen == 1);
    }
  }
}

TEST_CASE("labels and tokens outside of a sharded vocabulary are refused, as on one device") {
  for (const std::string name : {"labels", "tokens"}) {
    for (const int64_t id : {-1, 11}) {
      CAPTURE(name, id);
      auto given = built_in(kGpt, kRows);
      given.inputs.at(name) = given.inputs.at(name).clone();
      given.inputs.at(name).view({-1})[3] = id;
      const auto one = plan_of(given, R"([["parallel_mode", [["tensor", 1]]]])", kRows);
      CHECK_THROWS(train(given, one));
      const auto plan = tensor_parallel_plan_of(given, parallel(kTensorParallelTwo, "{}") + "]");
      CHECK_THROWS(train(given, plan));
    }
  }
}

TEST_CASE("tensor_parallel refuses layers that it cannot shard") {
  const auto refused = [](const char* keys, const std::string& axes,
                          const std::string& config) -> std::string {
    const auto given = built_in(keys, kRows);
    try {
      tensor_parallel_plan_of(given, parallel(axes, config) + "]");
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  CHECK(refused(kGpt, R"([["tensor", 4]])", "{}") ==
        "[tensor_parallel] attention heads must divide over the 4 ranks of axis tensor, but "
        "blocks.0.attn.qkv.weight (72 x 24) makes 6");
  CHECK(refused(kGpt, R"([["data", 2]])", "{}") ==
        "[tensor_parallel] layers are split over an axis of the mesh (data), but got \"tensor\"");
  CHECK(refused(kGpt, kOuter, R"({"axis": "data"})") ==
        "[tensor_parallel] an axis splits the batch or weights, but data splits the batch");
  CHECK(refused(kGpt, kTensorParallelTwo, R"({"column": ["blocks.*.attn.qvk"]})") ==
        "[tensor_parallel] column must match weights of the model, but got \"blocks.*.attn.qvk\", "
        "did you mean \"blocks.*.attn.qkv\"?");
  CHECK(refused(kGpt, kTensorParallelTwo,
                R"({"column": ["blocks.0.mlp.*"], "row": ["blocks.*.mlp.down"]})") ==
        "[tensor_parallel] a weight is split in one way, but blocks.0.mlp.down.weight is matched "
        "as column and as row");
  CHECK(refused(kGpt, kTensorParallelTwo, R"({"column": []})") ==
        "[tensor_parallel] column, row and vocab must name weights, but got none");
  CHECK(refused(kMlp, kTensorParallelTwo, kWithSequence) ==
        "[tensor_parallel] with sequence = true activations [batch, sequence, width] are sharded "
        "over the 2 ranks of axis tensor, but after blocks.1.weight they are [8, 10]");
  CHECK(refused(kMlp, R"([["tensor", 16]])", "{}") ==
        "[tensor_parallel] dim 0 of blocks.0.weight is split over 16 ranks of axis tensor, but "
        "has 10");
  const std::string four = R"([["tensor", 2], ["tensor2", 2]])";
  CHECK(refused(kGpt, four, "{}") ==
        "[tensor_parallel] attention heads must divide over the 4 ranks of axes tensor, tensor2, "
        "but blocks.0.attn.qkv.weight (72 x 24) makes 6");
  CHECK(refused(kMlp, R"([["tensor", 4], ["tensor2", 4]])", "{}") ==
        "[tensor_parallel] dim 0 of blocks.0.weight is split over 16 ranks of axes tensor, "
        "tensor2, but has 10");
  CHECK(refused(kGpt, four, R"({"axis": ["tensor", "tensor3"]})") ==
        "[tensor_parallel] layers are split over an axis of the mesh (tensor, tensor2), but got "
        "\"tensor3\", did you mean \"tensor\"?");
  CHECK(refused(kGpt, four, R"({"axis": []})") ==
        "[tensor_parallel] axis must name at least one axis, but is an empty list");
  CHECK(refused(kGpt, four, R"({"experts": false, "planned": true})") ==
        "[tensor_parallel] experts applies to the experts of known layers, but planned = true "
        "finds the split: leave it out");
}

}  // namespace
}  // namespace perigee::parity
