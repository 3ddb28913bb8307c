// Comparison of the results of two kernels.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "tests/support/torch_test.h"

namespace perigee::exec {

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
