// Covariance without LibTorch's test of the divisor's sign, which reads a value. A divisor that is
// not positive counts as 0, as in LibTorch.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "capture/composites/composite.h"

namespace perigee::tracing {
namespace {

// Of variables by rows and observations by columns, each counted fweights times and weighted by
// aweights. Matrix; a number where there is one variable.
at::Tensor cov(const at::Tensor& self, int64_t correction,
               const std::optional<at::Tensor>& fweights,
               const std::optional<at::Tensor>& aweights) {
  if (self.dim() > 2) {
    fail("capture", "cov takes variables by rows and observations by columns, but got [{}]{}",
         fmt::join(self.sizes(), ", "), Session::current()->where());
  }
  auto in = self.dim() < 2 ? self.reshape({1, -1}) : self;
  const auto observations = in.size(1);
  if (!fweights && !aweights) {
    in = in - in.sum(1, true) / observations;
    const auto divisor = static_cast<double>(std::max<int64_t>(0, observations - correction));
    return (in.mm(in.t().conj()) / divisor).squeeze();
  }
  const auto weights = !aweights ? *fweights : !fweights ? *aweights : *fweights * *aweights;
  const auto total = weights.sum();
  in = in - (in * weights).sum(1, true) / total;
  const auto lost = aweights && correction != 0 ? correction * (weights * *aweights).sum() / total
                                                : at::full_like(total, correction);
  return (in.mm((in * weights).t().conj()) / (total - lost).clamp_min(0)).squeeze();
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { m.impl("cov", cov); }

}  // namespace
}  // namespace perigee::tracing
