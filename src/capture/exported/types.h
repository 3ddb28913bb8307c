// Integers of the schema, and its numbers of element types and layouts (torch/_export/serde/schema.py).
#pragma once

#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace perigee::exported {

// Throws Error for JSON that is no integer of 64 bits.
int64_t integer(const nlohmann::json& value);
// `absent` where the object has no such key.
int64_t integer_or(const nlohmann::json& object, const char* key, int64_t absent);

// Throws Error for a number that the schema does not have.
at::ScalarType element_type(int64_t number);
at::Layout layout(int64_t number);
at::MemoryFormat memory_format(int64_t number);

}  // namespace perigee::exported
