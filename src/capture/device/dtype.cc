#include "capture/device/dtype.h"

#include <algorithm>
#include <array>

#include "base/fail.h"

namespace perigee::tracing {
namespace {

using graph::DType;

// In the order of graph::DType.
constexpr std::array types = {
    at::kBool,  at::kByte,          at::kChar,         at::kShort,         at::kInt,
    at::kLong,  at::kFloat8_e4m3fn, at::kFloat8_e5m2,  at::kHalf,          at::kBFloat16,
    at::kFloat, at::kDouble,        at::kComplexFloat, at::kComplexDouble,
};
static_assert(types.size() == static_cast<size_t>(DType::complex128) + 1);

}  // namespace

DType dtype_of(at::ScalarType type) {
  const auto found = std::ranges::find(types, type);
  if (found == types.end()) {
    fail("capture", "a graph's tensors are floating, integer, complex or bool, but got {}",
         c10::toString(type));
  }
  return static_cast<DType>(found - types.begin());
}

at::ScalarType scalar_type(DType dtype) { return types[static_cast<size_t>(dtype)]; }

graph::TensorType type_of(const at::Tensor& tensor) {
  return {dtype_of(tensor.scalar_type()), tensor.sizes().vec()};
}

}  // namespace perigee::tracing
