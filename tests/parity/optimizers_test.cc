// Optimizers that no other test trains with: on ranks as on one device, and as eagerly.
#include "tests/parity/support.h"
#include "tests/parity/support_built_in.h"
#include "tests/parity/support_ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Instruction;
using compile::Program;

constexpr int64_t kRows = 8;
const compile::StepSpec kLion{
    .optimizer = "lion", .beta1 = 0.9, .beta2 = 0.98, .weight_decay = 0.1, .clip_norm = 0.5};
const std::string kAlone = R"([["parallel_mode", [["data", 1]]]])";

}  // namespace

// A model in which no gradient is zero but for rounding: its sign would be chance.
TEST_CASE("lion trains sharded parameters as one device does") {
  torch::manual_seed(5);
  const auto given = built_in(kMlp, kRows);
  const auto one = train(given, plan_of(given, kAlone, kRows), {}, kLion)[0];
  CHECK(one.losses[1] < one.losses[0]);
  CHECK(compare(one, train(given, plan_of(given, kAlone, kRows))[0]) != "");  // adamw
  for (const std::string strategy :
       {R"([["parallel_mode", [["data", 4]]]])",
        R"([["parallel_mode", [["tensor", 2], ["data", 2]]], ["tensor_parallel", {}]])",
        R"([["parallel_mode", [["data", 2]]], ["zero1", {}]])",
        R"([["parallel_mode", [["data", 4]]], ["fsdp", {}]])"}) {
    INFO(strategy);
    CHECK(compare(one, train(given, plan_of(given, strategy, kRows), {}, kLion)) == "");
  }
  const auto drop = [](Program& program) {
    for (auto& section : program.sections) {
      if (section.name != "micro") continue;
      std::erase_if(section.instructions, [](const Instruction& i) {
        return i.kind == Instruction::Kind::collective || i.kind == Instruction::Kind::wait;
      });
    }
  };
  const auto plan = plan_of(given, R"([["parallel_mode", [["data", 2]]]])", kRows);
  CHECK(compare(one, train(given, plan, drop, kLion)) != "");
}

TEST_CASE("lion goes with mixed precision, masters and rounding at random") {
  torch::manual_seed(5);
  const auto given = built_in(kMlp, kRows, 1, "float32");
  const auto full = train(given, plan_of(given, kAlone, kRows), {}, kLion)[0];
  for (const std::string method :
       {R"(["amp_native", "bf16"])", R"(["half", "bf16"])",
        R"(["half", {"dtype": "bf16", "masters": false}])", R"(["amp_native", "fp16"])"}) {
    INFO(method);
    const auto strategy = R"([["parallel_mode", [["data", 2]]], )" + method + "]";
    for (const auto& rank : train(given, plan_of(given, strategy, kRows), {}, kLion)) {
      CHECK(rank.losses[0] == Approx(full.losses[0]).epsilon(1e-2));
      CHECK(rank.losses[1] == Approx(full.losses[1]).epsilon(5e-2));
    }
  }
}

}  // namespace perigee::parity
