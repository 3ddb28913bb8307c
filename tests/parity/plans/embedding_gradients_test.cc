// Gradients of embeddings, added to the rows that the indices name, also of a table that the head
// of the model shares.
#include <fmt/format.h>

#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Program;

constexpr const char* kRowsOp = "perigee::embedding_backward_";
constexpr const char* kLow =
    R"(["amp_native", {"dtype": "bf16"}], ["overlap", {"accumulate": true}])";

const Given& table(bool tied, int64_t microbatches, const std::string& dtype) {
  static std::map<std::tuple<bool, int64_t, std::string>, Given> known;
  const auto [at, added] = known.try_emplace({tied, microbatches, dtype});
  if (added) {
    torch::manual_seed(5);
    at->second = built_in(fmt::format("kind = 'gpt'\nlayers = 2\nwidth = 12\nheads = 6\n"
                                      "vocab = 59\ntied = {}\n",
                                      tied),
                          kRows, microbatches, dtype, /*tokens=*/6);
  }
  return at->second;
}

Program table_program(const Given& given, const std::string& methods, int64_t microbatches) {
  return compile_rank(given,
                      plan_of(given, strategy_on(R"(["data", 1])", methods, microbatches), kRows));
}

}  // namespace

TEST_CASE("gradients of embeddings train as on one device with every kind of parallelism") {
  struct Case {
    std::string axes, methods;
    int64_t microbatches;
    bool tied;
  };
  const std::vector<Case> cases = {
      {R"(["data", 2])", "", 1, true},
      {R"(["data", 2])", "", 2, false},
      {R"(["data", 2])", R"(["zero1", {}])", 2, true},
      {R"(["data", 2])", R"(["zero2", {}])", 2, true},
      {R"(["data", 2])", R"(["fsdp", {}])", 1, true},
      {R"(["data", 2])", R"(["overlap", {"weights": true}])", 2, true},
      {R"(["data", 2])", R"(["grad_comm", {"bucket_mb": 0.001}])", 4, true},
      {R"(["tensor", 2], ["data", 1])", R"(["tensor_parallel", {}])", 2, true},
      {R"(["tensor", 3], ["data", 1])", R"(["tensor_parallel", {"sequence": true}])", 1, true},
      {R"(["context", 2], ["data", 1])", R"(["context_parallel", {}])", 2, true},
      {R"(["pipe", 2], ["data", 1])", R"(["pipeline_parallel", {}])", 4, true},
      {R"(["pipe", 2], ["data", 2])", R"(["pipeline_parallel", {}], ["zero1", {}])", 2, false}};
  for (const auto& [axes, methods, microbatches, tied] : cases) {
    INFO(axes << methods << ", " << microbatches << " microbatches, tied: " << tied);
    const auto& given = table(tied, microbatches, "float64");
    const auto& whole = table(tied, 1, "float64");
    const auto one = train(whole, plan_of(whole, strategy_on(R"(["data", 1])", ""), kRows))[0];
    const auto plan = plan_of(given, strategy_on(axes, methods, microbatches), kRows);
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  }
}

TEST_CASE("a gradient of an embedding has no table of its own where another op writes the sum") {
  const auto rows = [](const Program& program, const std::string& section) {
    return std::pair(count(program, "aten::embedding_dense_backward", section),
                     count(program, kRowsOp, section));
  };
  // Of tokens and positions: the head writes the gradient of the former where it shares the table.
  using Counts = std::pair<int64_t, int64_t>;
  for (const std::string low : {"", kLow}) {
    INFO(low);
    const std::string dtype = "float32";
    CHECK((rows(table_program(table(true, 1, dtype), low, 1), "micro") == Counts{1, 1}));
    CHECK((rows(table_program(table(false, 1, dtype), low, 1), "micro") == Counts{2, 0}));
    const auto tied = table_program(table(true, 4, dtype), low, 4);
    CHECK((rows(tied, "micro_first") == Counts{1, 1}));
    CHECK((rows(tied, "micro") == Counts{0, 2}));
    CHECK(count(tied, "aten::add.Tensor") ==
          count(table_program(table(false, 4, dtype), low, 4), "aten::add.Tensor"));
    CHECK(tied.exact_memory);
  }
  // The head's product writes float32.
  CHECK(count(table_program(table(true, 1, "float32"), kLow, 1), "perigee::mm_") ==
        count(table_program(table(false, 1, "float32"), kLow, 1), "perigee::mm_"));
  // A sum of 16 bits would be rounded by each row.
  const auto half = table_program(table(true, 2, "float32"),
                                  R"(["half", {"dtype": "bf16", "gradients": "bf16"}])", 2);
  CHECK(count(half, kRowsOp) == 0);
  // The first microbatch sets a float32 sum by a gradient of 16 bits.
  const auto wide = table_program(table(false, 2, "float32"),
                                  R"(["half", {"dtype": "bf16", "gradients": "float32"}])", 2);
  CHECK(count(wide, kRowsOp) == 0);
}

TEST_CASE("a table in bfloat16 has the gradients of float32 products and rows") {
  const auto& given = table(true, 2, "float32");
  const auto train_on = [&](const std::string& axes, const std::string& methods) {
    return train(given, plan_of(given, strategy_on(axes, methods, 2), kRows), {},
                 {.optimizer = "sgd"}, 1);
  };
  const auto one = train_on(R"(["data", 1])", R"(["amp_native", {"dtype": "bf16"}])")[0];
  CHECK(compare(one, train_on(R"(["data", 1])", kLow), 1e-3) == "");
  CHECK(compare(one, train_on(R"(["data", 2])", kLow), 1e-3) == "");
  CHECK(compare(one, train_on(R"(["data", 2])", std::string(kLow) + R"(, ["zero2", {}])"), 1e-3) ==
        "");
}

TEST_CASE("rows of an embedding's gradient that are left out are noticed") {
  const auto& given = table(true, 1, "float64");
  const auto plan = plan_of(given, strategy_on(R"(["data", 1])", ""), kRows);
  const auto one = train(given, plan)[0];
  const auto broken = train(given, plan, [](Program& program) {
    size_t erased = 0;
    for (auto& section : program.sections) {
      erased += std::erase_if(section.instructions, [](const auto& i) { return i.op == kRowsOp; });
    }
    REQUIRE(erased == 1);
  });
  CHECK(compare(one, broken) != "");
}

}  // namespace perigee::parity
