// The method chunked_loss: a loss in chunks of rows trains as on one device, in less memory.
#include <fmt/format.h>

#include "tests/parity/support/built_in.h"
#include "tests/parity/support/models.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using Catch::Contains;
using compile::Program;

constexpr int64_t kTokens = 24;
constexpr const char* kChunked = R"(["chunked_loss", {"chunks": 3}])";

// A vocabulary that is large beside the model.
const Given& words(bool tied, int64_t microbatches, const std::string& dtype = "float64") {
  static std::map<std::tuple<bool, int64_t, std::string>, Given> known;
  const auto [at, added] = known.try_emplace({tied, microbatches, dtype});
  if (added) {
    torch::manual_seed(5);
    at->second = built_in(
        fmt::format("kind = 'gpt'\nlayers = 2\nwidth = 12\nheads = 6\nvocab = 1009\n"
                    "tied = {}\n",
                    tied),
        kRows, microbatches, dtype, kTokens);
  }
  return at->second;
}

Program chunked_program(const Given& given, const std::string& methods, int64_t microbatches) {
  return compile_rank(given,
                      plan_of(given, strategy_on(R"(["data", 1])", methods, microbatches), kRows));
}

int64_t peak(const Program& program) {
  int64_t bytes = 0;
  for (const auto& frame : program.frames) bytes += frame.bytes;
  return bytes;
}

}  // namespace

TEST_CASE("a loss in chunks trains as on one device, with every kind of parallelism") {
  struct Case {
    std::string axes, methods;
    int64_t microbatches;
    bool tied;
  };
  const std::vector<Case> cases = {
      {R"(["data", 1])", "", 1, true},
      {R"(["data", 1])", "", 1, false},
      {R"(["data", 1])", R"(, ["overlap", {"accumulate": true}])", 4, false},
      {R"(["data", 2])", "", 1, true},
      {R"(["data", 2])", R"(, ["zero1", {}])", 2, true},
      {R"(["data", 2])", R"(, ["zero2", {}])", 2, false},
      {R"(["data", 2])", R"(, ["fsdp", {}])", 1, false},
      {R"(["data", 2])", R"(, ["fsdp", {}], ["checkpoint", ["blocks.*", "head"]])", 2, false},
      {R"(["data", 2])", R"(, ["grad_comm", {"bucket_mb": 0.001}])", 4, true},
      {R"(["tensor", 2], ["data", 1])", R"(, ["tensor_parallel", {}])", 2, false},
      {R"(["tensor", 2], ["data", 2])", R"(, ["tensor_parallel", {"sequence": true}])", 2, true},
      {R"(["tensor", 3], ["data", 1])", R"(, ["tensor_parallel", {}])", 1, true},
      {R"(["context", 2], ["data", 1])", R"(, ["context_parallel", {}])", 2, true},
      {R"(["pipe", 2], ["data", 1])", R"(, ["pipeline_parallel", {}])", 4, true},
      {R"(["pipe", 2], ["data", 2])", R"(, ["pipeline_parallel", {}], ["zero1", {}])", 2, false},
      {R"(["pipe", 2], ["data", 1])",
       R"(, ["pipeline_parallel", {}], ["checkpoint", {"1": "blocks.*", "kept_microbatches": 1}])",
       4, false}};
  for (const auto& [axes, methods, microbatches, tied] : cases) {
    INFO(axes << methods << ", " << microbatches << " microbatches, tied: " << tied);
    const auto& given = words(tied, microbatches);
    const auto one = train(
        given, plan_of(given, strategy_on(R"(["data", 1])", "", microbatches), kRows))[0];
    const auto plan = plan_of(given, strategy_on(axes, kChunked + methods, microbatches), kRows);
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  }
}

TEST_CASE("a loss that is no cross entropy is chunked, too") {
  const auto given = built_in(
      "kind = 'mlp'\ninputs = 9\nwidth = 10\nlayers = 2\noutputs = 5\nloss = 'mse'\n", kRows);
  const auto one = train(given, plan_of(given, strategy_on(R"(["data", 1])", ""), kRows))[0];
  const auto plan = plan_of(given, strategy_on(R"(["data", 2])", kChunked), kRows);
  CHECK(compare(one, train(given, plan)) == "");
}

TEST_CASE("a chunked loss holds no more than a chunk of the logits, and no sum of gradients") {
  for (const bool tied : {true, false}) {
    for (const int64_t microbatches : {1, 2}) {
      INFO("tied " << tied << ", " << microbatches << " microbatches");
      const auto& given = words(tied, microbatches);
      const auto whole = chunked_program(given, "", microbatches),
                 parts = chunked_program(given, kChunked, microbatches);
      CHECK(count(whole, "perigee::cross_entropy") > 0);
      CHECK(count(parts, "perigee::cross_entropy") == 3 * count(whole, "perigee::cross_entropy"));
      // The logits of a microbatch; their gradient is as large.
      const int64_t logits = kRows * kTokens / microbatches * 1009 * 8;
      CHECK(peak(parts) <= peak(whole) - logits);
      // Each chunk adds to the gradient in place.
      CHECK(count(parts, "aten::add.Tensor") <= count(whole, "aten::add.Tensor"));
      CHECK(parts.exact_memory);
    }
  }
}

TEST_CASE("a chunked loss of 16 bits adds its gradients up in float32") {
  const auto& given = words(false, 2, "float32");
  for (const std::string low : {R"(["amp_native", {"dtype": "bf16"}])",
                                R"(["half", {"dtype": "bf16", "gradients": "float32"}])"}) {
    INFO(low);
    const auto train_with = [&](const std::string& methods, const std::string& axes) {
      return train(given, plan_of(given, strategy_on(axes, low + methods, 2), kRows), {},
                   {.optimizer = "sgd"}, 1);
    };
    const auto one = train_with(R"(, ["overlap", {"accumulate": true}])", R"(["data", 1])")[0];
    const auto chunked = std::string(", ") + kChunked;
    CHECK(compare(one, train_with(chunked, R"(["data", 1])"), 1e-3) == "");
    CHECK(compare(one, train_with(chunked, R"(["data", 2])"), 1e-3) == "");
    // Each microbatch has a product for each chunk that writes or adds to the float32 gradient.
    const auto program = chunked_program(given, low + chunked, 2);
    std::map<std::string, int> products;
    for (const auto& section : program.sections) {
      for (const auto& instruction : section.instructions) {
        if (!instruction.op.starts_with("perigee::addmm_") && instruction.op != "perigee::mm_") {
          continue;
        }
        const auto& sum =
            program.values[std::get<graph::ValueId>(instruction.args[0].second).index];
        if (sum.type.shape != std::vector<int64_t>{1009, 12}) continue;
        CHECK(sum.type.dtype == graph::DType::float32);
        ++products[section.name() + " " + instruction.op];
      }
    }
    CHECK(products == std::map<std::string, int>{{"micro perigee::addmm_", 3},
                                                 {"micro_first perigee::addmm_", 2},
                                                 {"micro_first perigee::mm_", 1}});
  }
}

TEST_CASE("a chunk of the loss that is left out is noticed") {
  const auto& given = words(false, 1);
  const auto plan = plan_of(given, strategy_on(R"(["data", 1])", kChunked), kRows);
  const auto one = train(given, plan)[0];
  const auto broken = train(given, plan, [](compile::Program& program) {
    int seen = 0;
    for (auto& section : program.sections) {
      std::erase_if(section.instructions, [&](const auto& instruction) {
        return instruction.op == "perigee::addmm_" && ++seen == 2;
      });
    }
    REQUIRE(seen > 1);
  });
  CHECK(compare(one, broken) != "");
}

TEST_CASE("a loss that cannot be chunked is refused with the reason") {
  const auto why = [](const Given& given, const std::string& axes, const std::string& methods) {
    try {
      train(given, plan_of(given, strategy_on(axes, methods), kRows));
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto& given = words(false, 1);
  CHECK_THAT(
      why(given, R"(["data", 1])", std::string(kChunked) + R"(, ["overlap", {"weights": true}])"),
      Contains("[chunked_loss] gradients of weights") && Contains("overlap"));
  CHECK_THAT(why(given, R"(["data", 1])", R"(["chunked_loss", {"chunks": 1}])"),
             Contains("chunks") && Contains("at least 2"));
}

}  // namespace perigee::parity
