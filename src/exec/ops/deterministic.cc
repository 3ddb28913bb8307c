#include "exec/ops/deterministic.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <c10/util/env.h>

#include <string_view>
#include <utility>

#include "base/fail.h"

namespace perigee::exec {

void refuse_nondeterministic() {
  // With a fixed workspace size cuBLAS is deterministic for any number of streams.
  c10::utils::set_env("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/false);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  // Else a new tensor is filled with NaN, also one at the planned address of a result, where an
  // operand that the op reads may be.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

Kernel deterministic_only(Kernel kernel, std::string op) {
  return [kernel = std::move(kernel), op = std::move(op)](std::span<const at::Tensor> operands,
                                                          std::span<at::Tensor> outputs,
                                                          const Draw& draw) {
    try {
      kernel(operands, outputs, draw);
    } catch (const c10::Error& error) {
      const std::string_view text = error.what_without_backtrace();
      const auto says = text.find(" does not have a deterministic implementation");
      if (says == std::string_view::npos) throw;
      fail("exec",
           "{} has no kernel here whose results are the same from run to run ({}): leave "
           "cluster.deterministic out (deterministic_mode of [megatron]), or replace the op in the "
           "model",
           op, text.substr(0, says));
    }
  };
}

}  // namespace perigee::exec
