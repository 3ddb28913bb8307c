#include "capture/dtype.h"

#include <array>
#include <utility>

#include "base/error.h"

namespace perigee::tracing {
namespace {

using graph::DType;

constexpr std::array<std::pair<at::ScalarType, DType>, 14> pairs = {{
    {at::kFloat, DType::float32},
    {at::kLong, DType::int64},
    {at::kBool, DType::boolean},
    {at::kDouble, DType::float64},
    {at::kBFloat16, DType::bfloat16},
    {at::kHalf, DType::float16},
    {at::kByte, DType::uint8},
    {at::kChar, DType::int8},
    {at::kShort, DType::int16},
    {at::kInt, DType::int32},
    {at::kFloat8_e4m3fn, DType::float8_e4m3},
    {at::kFloat8_e5m2, DType::float8_e5m2},
    {at::kComplexFloat, DType::complex64},
    {at::kComplexDouble, DType::complex128},
}};

}  // namespace

DType dtype_of(at::ScalarType type) {
  for (const auto& [torch, dtype] : pairs) {
    if (torch == type) return dtype;
  }
  fail("capture", "a graph's tensors are floating, integer, complex or bool, but got {}",
       c10::toString(type));
}

at::ScalarType scalar_type(DType dtype) {
  for (const auto& [torch, ours] : pairs) {
    if (ours == dtype) return torch;
  }
  fail("capture", "LibTorch has a type for every dtype, but got {}", graph::name_of(dtype));
}

graph::TensorType type_of(const at::Tensor& tensor) {
  return {dtype_of(tensor.scalar_type()), tensor.sizes().vec()};
}

}  // namespace perigee::tracing
