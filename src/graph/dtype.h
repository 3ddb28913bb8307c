// Element types of tensors, named as in safetensors' long form and in jobs ("float32").
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace perigee::graph {

enum class DType : uint8_t {
  boolean,
  uint8,
  int8,
  int16,
  int32,
  int64,
  float8_e4m3,
  float8_e5m2,
  float16,
  bfloat16,
  float32,
  float64,
  complex64,
  complex128,
};

// Returns the size of one element in bytes.
size_t size_of(DType dtype);

// Returns "float32", "bool", ...
std::string_view name_of(DType dtype);

// Returns the type of that name, or nothing.
std::optional<DType> dtype_of(std::string_view name);

bool is_floating(DType dtype);
// Returns true for float16 and bfloat16.
bool is_half(DType dtype);

}  // namespace perigee::graph
