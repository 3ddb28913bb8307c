// Products that compute GELU and its gradient (overlap { activations = true }): the program, the
// numbers under each kind of parallelism, memory, and negative controls. On a CPU the op calls the
// kernels of the ops that it replaces.
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Instruction;
using compile::Program;

std::string gpt_of(int64_t hidden) {
  return "kind = 'gpt'\nlayers = 2\nwidth = 32\nheads = 4\nvocab = 16\ndropout = 0.1\nhidden = " +
         std::to_string(hidden) + "\n";
}
constexpr const char* kActivations = R"(, ["overlap", {"activations": true}])";
constexpr const char* kAmp = R"(["amp_native", {"dtype": "bf16"}])";

const Given& wide(int64_t microbatches) {
  static std::map<int64_t, Given> known;
  const auto [at, added] = known.try_emplace(microbatches);
  if (added) at->second = built_in(gpt_of(64), kRows, microbatches, "float32");
  return at->second;
}

plan::Plan wide_plan(const std::string& axes, const std::string& methods,
                     int64_t microbatches = 1) {
  return plan_of(wide(microbatches), strategy_on(axes, methods, microbatches), kRows);
}

Program wide_program(const std::string& methods, int64_t microbatches = 1,
                     const compile::StepSpec& spec = {}) {
  DryRuns traces;
  return compile::compile(wide(microbatches).graph,
                          wide_plan(R"(["data", 1])", methods, microbatches), spec, 0, traces);
}

struct Counts {
  int64_t gelu, gradients, apart;
  bool operator==(const Counts&) const = default;
};

Counts counts(const Program& program) {
  return {count(program, "perigee::mm_gelu"), count(program, "perigee::mm_gelu_backward"),
          count(program, "aten::gelu") + count(program, "aten::gelu_backward") +
              count(program, "perigee::gelu_backward_sum")};
}

bool are_equal(const Outcome& a, const Outcome& b) {
  return a.losses == b.losses && a.norms == b.norms &&
         std::ranges::equal(a.tensors, b.tensors, [](const auto& x, const auto& y) {
           return x.first == y.first && at::equal(x.second.first, y.second.first);
         });
}

}  // namespace

TEST_CASE("products of 16 bits compute the GELU after them, and its gradient") {
  for (const auto* low : {kAmp, R"(["half", {"dtype": "bf16"}])"}) {
    INFO(low);
    CHECK(counts(wide_program(low)) == Counts{0, 0, 4});
    const auto fused = wide_program(low + std::string(kActivations));
    CHECK(counts(fused) == Counts{2, 2, 0});
    CHECK(fused.exact_memory);
  }
  // Recomputed blocks compute GELU twice, evaluation only forwards, without GELU's argument.
  CHECK(counts(wide_program(std::string(kAmp) + R"(, ["checkpoint", ["blocks.*"]])" +
                            kActivations)) == Counts{4, 2, 0});
  const auto evaluation = wide_program(std::string(kAmp) + kActivations, 1, {.evaluation = true});
  CHECK(counts(evaluation) == Counts{2, 0, 0});
  for (const auto& section : evaluation.sections) {
    for (const auto& i : section.instructions) {
      if (i.op == "perigee::mm_gelu") CHECK(!i.outputs[1].defined());
    }
  }
}

TEST_CASE("fused activations change no number and no prediction of memory, with any method") {
  struct Case {
    const char *axes, *methods;
    int64_t microbatches = 1;
  };
  for (const auto& c : {
           Case{R"(["data", 1])", kAmp, 4},
           Case{R"(["data", 2])", R"(["half", {"dtype": "bf16"}], ["zero1", {}])", 2},
           Case{R"(["data", 2])", R"(["amp_native", {"dtype": "bf16"}], ["fsdp", {}])", 2},
           Case{R"(["tensor", 2])",
                R"(["amp_native", {"dtype": "bf16"}], ["tensor_parallel", {}])"},
           Case{R"(["tensor", 2])",
                R"(["amp_native", {"dtype": "bf16"}], ["tensor_parallel", {"sequence": true}])"},
           Case{R"(["pipe", 2])",
                R"(["amp_native", {"dtype": "bf16"}], ["pipeline_parallel", {"schedule": "zb1p"}])",
                4},
           Case{R"(["data", 2])",
                R"(["amp_native", {"dtype": "bf16"}], ["offload", {"layers": 1}])"},
           Case{R"(["data", 1])",
                R"(["amp_native", {"dtype": "bf16"}], ["checkpoint", ["blocks.*.mlp"]])"},
       }) {
    INFO(c.axes << c.methods);
    const auto& given = wide(c.microbatches);
    const auto apart = train(given, wide_plan(c.axes, c.methods, c.microbatches));
    const auto plan = wide_plan(c.axes, c.methods + std::string(kActivations), c.microbatches);
    int64_t fused = 0;
    const auto ranks = train(given, plan, [&](Program& program) {
      fused += counts(program).gelu + counts(program).gradients;
    });
    CHECK(fused >= 4);
    for (size_t r = 0; r < ranks.size(); ++r) CHECK(are_equal(apart[r], ranks[r]));
    CHECK(compare_memory(given, plan, ranks) == "");
  }
}

TEST_CASE("products that are cut stay apart from GELU") {
  const auto fused = [](const std::string& overlap) {
    const auto plan = plan_of(
        wide(1),
        strategy_on(R"(["tensor", 2])",
                    kAmp + std::string(R"(, ["tensor_parallel", {"sequence": true}], )") + overlap),
        kRows);
    DryRuns traces;
    const auto found = counts(compile::compile(wide(1).graph, plan, {}, 0, traces));
    CHECK(found.apart == 4 - found.gelu - found.gradients);
    return found.gelu + found.gradients;
  };
  // The products of gathered rows are cut; those of gathered gradients are not.
  CHECK(fused(R"(["overlap", {"slices": 2, "activations": true}])") == 2);
  CHECK(fused(R"(["overlap", {"activations": true}])") == 4);
}

TEST_CASE("a product with GELU is computed in the way that the plan states") {
  auto apart = wide_plan(R"(["data", 1])", kAmp);
  auto fused = wide_plan(R"(["data", 1])", std::string(kAmp) + kActivations);
  for (auto* plan : {&apart, &fused}) {
    plan->products = {{"bfloat16 [48, 32] x [32, 64] + [64]", "blocks"},
                      {"bfloat16 [48, 32] x [32, 64]", "blocks"}};
  }
  int64_t stated = 0;
  const auto ranks = train(wide(1), fused, [&](Program& program) {
    for (const auto& section : program.sections) {
      for (const auto& i : section.instructions) {
        if (!i.op.starts_with("perigee::mm_gelu")) continue;
        stated += std::ranges::count(i.args, std::string("way"),
                                     [](const auto& argument) { return argument.first; });
      }
    }
  });
  CHECK(stated == 4);
  CHECK(are_equal(train(wide(1), apart)[0], ranks[0]));
}

TEST_CASE("negative control: a fused gradient of another layer's GELU is found") {
  const auto plan = wide_plan(R"(["data", 1])", std::string(kAmp) + kActivations);
  const auto right = train(wide(1), plan);
  const auto wrong = train(wide(1), plan, [](Program& program) {
    std::vector<graph::Arg*> saved;
    for (auto& section : program.sections) {
      for (auto& i : section.instructions) {
        if (i.op != "perigee::mm_gelu_backward") continue;
        for (auto& [name, arg] : i.args) {
          if (name == "pre") saved.push_back(&arg);
        }
      }
    }
    REQUIRE(saved.size() == 2);
    *saved[0] = *saved[1];
  });
  CHECK(compare(right[0], wrong, 1e-6) != "");
}

TEST_CASE("activations without a GELU in 16 bits are an error") {
  const auto refused = [](const Given& given, const std::string& methods) {
    const auto plan = plan_of(given, strategy_on(R"(["data", 1])", methods), kRows);
    compile::NoTraces traces;
    CHECK_THROWS_WITH(compile::compile(given.graph, plan, {}, 0, traces),
                      Catch::Contains("[overlap] activations lets products of 16 bits") &&
                          Catch::Contains("use amp_native or half"));
  };
  refused(wide(1), R"(["overlap", {"activations": true}])");
  refused(built_in(kLlama, kRows, 1, "float32"), std::string(kAmp) + kActivations);
  refused(built_in(gpt_of(36), kRows, 1, "float32"), std::string(kAmp) + kActivations);
}

}  // namespace perigee::parity
