// sequence_parallel and context_parallel: sharded sequences train as whole ones do.
#include <fmt/format.h>

#include "base/error.h"
#include "graph/ops.h"
#include "tests/parity/support.h"
#include "tests/parity/support_built_in.h"
#include "tests/parity/support_ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Instruction;
using compile::Program;

constexpr int64_t kRows = 4;

plan::Plan plan_of(const Given& given, const std::string& mesh, const std::string& methods) {
  return plan_of(given, fmt::format(R"([["parallel_mode", {}], {}])", mesh, methods), kRows);
}

TEST_CASE("sharded sequences train as on one device") {
  const auto check = [](const std::string& keys, const std::string& mesh,
                        const std::string& methods) {
    torch::manual_seed(5);
    const auto given = built_in(keys, kRows);
    const auto one = train(given, plan_of(given, R"([["data", 1]])", R"(["grad_comm", {}])"))[0];
    const auto plan = plan_of(given, mesh, methods);
    INFO(keys << mesh << methods);
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  };
  const std::string grouped =
      "kind = 'llama'\nlayers = 2\nwidth = 24\nheads = 6\nkv_heads = 2\n"
      "hidden = 40\nvocab = 11\n";
  const std::string two = R"([["sequence", 2]])", three = R"([["sequence", 3], ["data", 2]])",
                    context = R"([["context", 2]])", both = R"([["tensor", 2], ["context", 3]])";
  const std::string ulysses = R"(["sequence_parallel", {}])",
                    gather = R"(["context_parallel", {}])";
  for (const char* keys : {kGpt, kLlama}) {
    check(keys, two, ulysses);
    check(keys, three, ulysses);
    check(keys, context, gather);
    check(keys, context, R"(["context_parallel", {"attention": "all_to_all"}])");
    check(keys, both, R"(["tensor_parallel", {}], ["context_parallel", {}])");
  }
  check(grouped, two, ulysses);
  check(grouped, R"([["context", 3]])", gather);
  check(kGpt, R"([["context", 2], ["pipe", 2]])",
        R"(["context_parallel", {}], ["pipeline_parallel", {"starts": ["blocks.1"]}],
            ["gradient_accumulation", {"microbatches": 1}])");
  check(kGpt, R"([["sequence", 2], ["data", 2]])",
        R"(["sequence_parallel", {}], ["zero2", {}], ["checkpoint", ["blocks.*"]])");
}

// Of each of two layers: queries, keys and values, and what attention makes of them, each way; or
// keys and values, and their gradients.
TEST_CASE("sharded sequences move what theory says") {
  torch::manual_seed(5);
  const auto counts = [&](const char* keys, const char* mesh, const char* methods) {
    const auto given = built_in(keys, kRows);
    DryRuns traces;
    const auto program =
        compile::compile(given.graph, plan_of(given, mesh, methods), {}, 0, traces);
    std::string text;
    for (const auto& [what, count] : exchanges_of(program))
      text += fmt::format("{} x {}\n", count, what);
    return text;
  };
  for (const char* keys : {kGpt, kLlama}) {
    INFO(keys);
    CHECK(counts(keys, R"([["sequence", 2]])", R"(["sequence_parallel", {}])") ==
          "8 x backward all_to_all\n8 x forward all_to_all\n");
    CHECK(counts(keys, R"([["context", 2]])", R"(["context_parallel", {}])") ==
          "4 x backward reduce_scatter\n4 x forward all_gather\n");
  }
}

TEST_CASE("a sharded sequence that is not exchanged, or not summed, is found out") {
  torch::manual_seed(5);
  const auto given = built_in(kGpt, kRows);
  const auto one = train(given, plan_of(given, R"([["data", 1]])", R"(["grad_comm", {}])"))[0];
  for (const char* method : {"sequence", "context"}) {
    const auto plan = plan_of(given, fmt::format(R"([["{}", 2]])", method),
                              fmt::format(R"(["{}_parallel", {{}}])", method));
    for (const char* op :
         {"comm::all_to_all", "comm::all_gather", "comm::reduce_scatter", "comm::all_reduce"}) {
      bool any = false;
      const auto ranks = train(given, plan, [&](Program& program) {
        for (auto& section : program.sections) {
          any = std::erase_if(section.instructions,
                              [&](const Instruction& i) { return i.op == op; }) > 0 ||
                any;
        }
      });
      INFO(method << " without " << op);
      CHECK((compare(one, ranks) != "") == any);
    }
  }
}

TEST_CASE("sequence_parallel and context_parallel say what cannot be sharded") {
  const auto refused = [](const std::string& keys, const std::string& mesh,
                          const std::string& method) -> std::string {
    const auto given = built_in(keys, kRows);
    try {
      plan_of(given, mesh, method);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  CHECK(refused(kGpt, R"([["data", 2]])", R"(["sequence_parallel", {}])") ==
        "[sequence_parallel] the sequence is sharded over an axis of the mesh (data), but got "
        "\"sequence\"");
  CHECK(refused(kGpt, R"([["sequence", 4]])", R"(["sequence_parallel", {}])") ==
        "[sequence_parallel] a sequence must divide over the 4 ranks of axis sequence, but has 6");
  CHECK(refused("kind = 'gpt'\nlayers = 1\nwidth = 8\nheads = 4\nvocab = 11\n",
                R"([["sequence", 3]])", R"(["sequence_parallel", {}])") ==
        "[sequence_parallel] attention heads must divide over the 3 ranks of axis sequence, but "
        "blocks.0.attn has 4: context_parallel gathers keys and values instead");
  CHECK(refused(kGpt, R"([["context", 2]])", R"(["context_parallel", {"attention": "ring"}])") ==
        "[context_parallel] attention is all_gather or all_to_all here, ring is not built yet");
  CHECK(refused(kMlp, R"([["context", 3]])", R"(["context_parallel", {}])") ==
        "[context_parallel] attention over the sequence of 9 is needed, but the model has none");
}

}  // namespace
}  // namespace perigee::parity
