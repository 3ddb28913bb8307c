// The schema's numbers of element types and layouts (torch/_export/serde/schema.py).
#pragma once

#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

namespace perigee::exported {

// Throws Error for a number that the schema does not have.
at::ScalarType element_type(int64_t number);
at::Layout layout(int64_t number);
at::MemoryFormat memory_format(int64_t number);

}  // namespace perigee::exported
