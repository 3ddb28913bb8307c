#include "capture/exported/types.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "base/fail.h"

namespace perigee::exported {

int64_t integer(const nlohmann::json& value) {
  constexpr auto kLargest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= kLargest);
  if (!fits) {
    fail("capture", "an exported model's sizes and numbers of types are integers, but one is {}",
         value.dump());
  }
  return value.get<int64_t>();
}

int64_t integer_or(const nlohmann::json& object, const char* key, int64_t absent) {
  return object.contains(key) ? integer(object.at(key)) : absent;
}

at::ScalarType element_type(int64_t number) {
  switch (number) {
    case 1:
      return at::kByte;
    case 2:
      return at::kChar;
    case 3:
      return at::kShort;
    case 4:
      return at::kInt;
    case 5:
      return at::kLong;
    case 6:
      return at::kHalf;
    case 7:
      return at::kFloat;
    case 8:
      return at::kDouble;
    case 9:
      return at::kComplexHalf;
    case 10:
      return at::kComplexFloat;
    case 11:
      return at::kComplexDouble;
    case 12:
      return at::kBool;
    case 13:
      return at::kBFloat16;
    case 29:
      return at::kFloat8_e4m3fn;
    case 30:
      return at::kFloat8_e5m2;
    default:
      fail("capture", "an exported model's element types are those of tensors, but got number {}",
           number);
  }
}

at::Layout layout(int64_t number) {
  if (number != 7) {
    fail("capture", "an exported model's tensors are strided, but got layout {}", number);
  }
  return at::kStrided;
}

at::MemoryFormat memory_format(int64_t number) {
  switch (number) {
    case 1:
      return at::MemoryFormat::Contiguous;
    case 2:
      return at::MemoryFormat::ChannelsLast;
    case 3:
      return at::MemoryFormat::ChannelsLast3d;
    case 4:
      return at::MemoryFormat::Preserve;
    default:
      fail("capture", "an exported model's memory formats are those of tensors, but got number {}",
           number);
  }
}

}  // namespace perigee::exported
