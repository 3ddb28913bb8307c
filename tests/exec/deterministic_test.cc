#include "exec/ops/deterministic.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/util/env.h>

#include "base/error.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

// A kernel that LibTorch reports as nondeterministic, and one that fails for another reason.
const Kernel kUnordered = [](auto, auto, const Draw&) {
  at::Context::alertNotDeterministic("scatter_add_cuda_kernel");
};
const Kernel kWrong = [](auto, auto, const Draw&) { TORCH_CHECK(false, "no such size"); };

void run(const Kernel& kernel) { kernel({}, {}, {}); }

TEST_CASE("a nondeterministic kernel is an error that names the op and the remedy") {
  auto& context = at::globalContext();
  const bool before = context.deterministicAlgorithms();
  const bool warned = context.deterministicAlgorithmsWarnOnly();
  CHECK_NOTHROW(
      run(deterministic_only(kUnordered, "aten::scatter_add")));  // determinism is not required
  refuse_nondeterministic();
  CHECK(c10::utils::has_env("CUBLAS_WORKSPACE_CONFIG"));
  // A result may be made where its operand is.
  CHECK_FALSE(context.deterministicFillUninitializedMemory());
  CHECK_THROWS_WITH(
      run(deterministic_only(kUnordered, "aten::scatter_add")),
      "[exec] aten::scatter_add has no kernel here whose results are the same from run to run "
      "(scatter_add_cuda_kernel): leave cluster.deterministic out (deterministic_mode of "
      "[megatron]), or replace the op in the model");
  CHECK_THROWS_WITH(run(deterministic_only(kWrong, "aten::scatter_add")),
                    Catch::Contains("no such size"));
  bool ran = false;
  run(deterministic_only([&](auto, auto, const Draw&) { ran = true; }, "aten::mm"));
  CHECK(ran);
  context.setDeterministicAlgorithms(before, warned);
}

}  // namespace
}  // namespace perigee::exec
