// Products that add to the sum of those before them: the program, the numbers under each kind of
// parallelism, memory, and a negative control.
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Program;

const std::string kSumsOne = R"(["data", 1])";
const std::string kSumsAmp = R"(["amp_native", {"dtype": "bf16"}])";
constexpr int64_t kBlocks = 2;

const Given& sums_model(const std::string& dtype) {
  static std::map<std::string, Given> known;
  const auto [at, added] = known.try_emplace(dtype);
  if (added) at->second = built_in(kLlama, kRows, 1, dtype);
  return at->second;
}

plan::Plan sums_plan(const std::string& dtype, const std::string& axes,
                     const std::string& methods) {
  return plan_of(sums_model(dtype), strategy_on(axes, methods, 1), kRows);
}

}  // namespace

TEST_CASE("gradients of queries, keys and values, and of gate and up, are added up by products") {
  // Weight gradients of one microbatch are not added to anything.
  const auto wide = compile_rank(sums_model("float32"), sums_plan("float32", kSumsOne, ""), {});
  CHECK(count(wide, "perigee::addmm_") == kBlocks * 3);
  CHECK(count(wide, "perigee::mm_") == 0);
  CHECK(wide.exact_memory);
  // In bfloat16 the first product writes the sum in float32, too.
  const auto low = compile_rank(sums_model("float32"), sums_plan("float32", kSumsOne, kSumsAmp),
                                {});
  CHECK(count(low, "perigee::addmm_") == kBlocks * 3);
  CHECK(count(low, "perigee::mm_") == kBlocks * 2);
  CHECK(low.exact_memory);
  // What is left are the sums of a block's two residuals.
  CHECK(count(low, "aten::add.Tensor") <= 2 * kBlocks);
}

TEST_CASE("sums of products equal one device, with any method") {
  struct Case {
    const char *axes, *methods;
  };
  const auto one = train(sums_model("float64"), sums_plan("float64", kSumsOne, ""))[0];
  for (const auto& c : {
           Case{R"(["tensor", 2])", R"(["tensor_parallel", {}])"},
           Case{R"(["tensor", 2])", R"(["tensor_parallel", {"sequence": true}])"},
           Case{R"(["data", 2])", R"(["fsdp", {}])"},
           Case{R"(["data", 1])", R"(["checkpoint", ["blocks.*"]])"},
           Case{R"(["pipe", 2])", R"(["pipeline_parallel", {}])"},
           Case{R"(["pipe", 2])", R"(["pipeline_parallel", {"schedule": "zb1p"}])"},
           Case{R"(["data", 1])", R"(["offload", {"layers": 1}])"},
       }) {
    INFO(c.axes << c.methods);
    const auto plan = sums_plan("float64", c.axes, c.methods);
    int64_t sums = 0;
    const auto ranks = train(sums_model("float64"), plan,
                             [&](Program& program) { sums += count(program, "perigee::addmm_"); });
    CHECK(sums >= kBlocks * 3);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(sums_model("float64"), plan, ranks) == "");
  }
}

TEST_CASE("negative control: a product that sets the sum of those before it is found") {
  const auto plan = sums_plan("float64", kSumsOne, "");
  const auto right = train(sums_model("float64"), plan)[0];
  const auto wrong = train(sums_model("float64"), plan, [](Program& program) {
    for (auto& section : program.sections) {
      for (auto& i : section.instructions) {
        if (i.op != "perigee::addmm_") continue;
        i.op = "perigee::mm_";
        return;
      }
    }
  });
  CHECK(compare(right, wrong) != "");
}

}  // namespace perigee::parity
