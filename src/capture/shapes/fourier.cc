// Fourier transforms.
#include <ATen/ATen.h>

#include "capture/device/tensor.h"
#include "capture/shapes/tables.h"

namespace perigee::tracing {
namespace {

// The last of the transformed dims, from the front.
int64_t last_dim(const Values& v) {
  const auto dim = v.ints(1).back();
  return dim < 0 ? dim + v.tensor(0).dim() : dim;
}

// (self, dim, normalization, onesided): one side of the last dim, the other one is its conjugate.
std::vector<at::Tensor> of_real(const Values& v) {
  auto sizes = v.tensor(0).sizes().vec();
  if (v.boolean(3)) sizes[last_dim(v)] = sizes[last_dim(v)] / 2 + 1;
  return {meta_tensor(sizes, c10::toComplexType(v.tensor(0).scalar_type()))};
}

// (self, dim, normalization, last_dim_size)
std::vector<at::Tensor> to_real(const Values& v) {
  auto sizes = v.tensor(0).sizes().vec();
  sizes[last_dim(v)] = v.integer(3);
  return {meta_tensor(sizes, c10::toRealValueType(v.tensor(0).scalar_type()))};
}

// (n, d, dtype, ..)
template <bool OneSided>
std::vector<at::Tensor> frequencies(const Values& v) {
  const auto count = OneSided ? v.integer(0) / 2 + 1 : v.integer(0);
  const auto type = v[2].isNone() ? at::typeMetaToScalarType(at::get_default_dtype())
                                  : v[2].toScalarType();
  return {meta_tensor({count}, type)};
}

}  // namespace

ShapeTable fourier_shapes() {
  return {
      {"aten::_fft_r2c", of_real},
      {"aten::_fft_c2r", to_real},
      {"aten::_fft_c2c", like<0>},
      {"aten::fft_fftfreq", frequencies<false>},
      {"aten::fft_rfftfreq", frequencies<true>},
  };
}

}  // namespace perigee::tracing
