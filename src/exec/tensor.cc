#include "exec/tensor.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

#include "base/fail.h"

namespace perigee::exec {

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
