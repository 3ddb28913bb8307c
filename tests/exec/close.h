// Comparison of the results of two kernels.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

#include "exec/kernels/kernels.h"
#include "exec/reference/reference.h"
#include "tests/exec/support.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {

// Returns the results of the fast and the reference kernel on the same operands.
inline std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>> both(
    const std::string& name, const Named& tensors, const Args& args,
    const std::vector<graph::TensorType>& types, const Draw& draw = {}) {
  return {call(cpu_kernel, name, tensors, args, types, draw),
          call(reference_kernel, name, tensors, args, types, draw)};
}

// Returns what the results of two kernels of a type may differ by.
inline double tolerance_of(at::ScalarType type) {
  return type == at::kDouble ? 1e-12 : type == at::kFloat ? 3e-5 : 3e-2;
}

// Requires equal types and shapes, and elements equal to the tolerance, relative or absolute.
inline void require_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
                          double tolerance) {
  for (size_t i = 0; i < a.size(); ++i) {
    INFO("result " << i);
    REQUIRE(a[i].scalar_type() == b[i].scalar_type());
    REQUIRE(a[i].sizes() == b[i].sizes());
    REQUIRE(at::allclose(a[i].to(at::kDouble), b[i].to(at::kDouble), tolerance, tolerance));
  }
}

}  // namespace perigee::exec
