#include "base/text/bytes.h"

#include <fmt/format.h>

namespace perigee {

std::string bytes_text(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  // 999.6 would be printed as 1e+03.
  while (bytes >= 999.5 && unit < 5) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.3g} {}", bytes, units[unit]);
}

}  // namespace perigee
