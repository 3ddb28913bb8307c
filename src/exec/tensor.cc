#include "exec/tensor.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstring>

#include "base/error.h"

namespace perigee::exec {
namespace {

using graph::DType;

constexpr std::array<std::pair<DType, at::ScalarType>, 14> kTypes = {{
    {DType::boolean, at::kBool},
    {DType::uint8, at::kByte},
    {DType::int8, at::kChar},
    {DType::int16, at::kShort},
    {DType::int32, at::kInt},
    {DType::int64, at::kLong},
    {DType::float8_e4m3, at::kFloat8_e4m3fn},
    {DType::float8_e5m2, at::kFloat8_e5m2},
    {DType::float16, at::kHalf},
    {DType::bfloat16, at::kBFloat16},
    {DType::float32, at::kFloat},
    {DType::float64, at::kDouble},
    {DType::complex64, at::kComplexFloat},
    {DType::complex128, at::kComplexDouble},
}};

}  // namespace

at::ScalarType scalar_type(DType dtype) { return kTypes[static_cast<size_t>(dtype)].second; }

DType dtype_of(at::ScalarType type) {
  for (const auto& [dtype, scalar] : kTypes) {
    if (scalar == type) return dtype;
  }
  fail("exec", "tensors must have an element type that the graph knows, but got {}",
       c10::toString(type));
}

graph::TensorType type_of(const at::Tensor& tensor) {
  return {dtype_of(tensor.scalar_type()), tensor.sizes().vec()};
}

std::string to_string(const graph::TensorType& type) {
  return fmt::format("{}[{}]", c10::toString(scalar_type(type.dtype)), fmt::join(type.shape, ", "));
}

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t next = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = next;
    next *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

at::Tensor from_bytes(const graph::TensorType& type, const std::string& bytes) {
  auto tensor = at::empty(type.shape, at::TensorOptions().dtype(scalar_type(type.dtype)));
  if (tensor.nbytes() != bytes.size()) {
    fail("exec", "a constant of type {} needs {} bytes, but got {}", to_string(type),
         tensor.nbytes(), bytes.size());
  }
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

}  // namespace perigee::exec
