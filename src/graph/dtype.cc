#include "graph/dtype.h"

#include <array>

namespace perigee::graph {
namespace {

struct Entry {
  std::string_view name;
  size_t size;
};

// In the order of the enumeration.
constexpr std::array<Entry, 14> table = {{{"bool", 1},
                                          {"uint8", 1},
                                          {"int8", 1},
                                          {"int16", 2},
                                          {"int32", 4},
                                          {"int64", 8},
                                          {"float8_e4m3", 1},
                                          {"float8_e5m2", 1},
                                          {"float16", 2},
                                          {"bfloat16", 2},
                                          {"float32", 4},
                                          {"float64", 8},
                                          {"complex64", 8},
                                          {"complex128", 16}}};

}  // namespace

size_t size_of(DType dtype) { return table[static_cast<size_t>(dtype)].size; }

std::string_view name_of(DType dtype) { return table[static_cast<size_t>(dtype)].name; }

std::optional<DType> dtype_of(std::string_view name) {
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

bool is_floating(DType dtype) { return dtype >= DType::float8_e4m3 && dtype <= DType::float64; }
bool is_half(DType dtype) { return dtype == DType::float16 || dtype == DType::bfloat16; }

}  // namespace perigee::graph
