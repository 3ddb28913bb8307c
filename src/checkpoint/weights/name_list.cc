#include "checkpoint/weights/name_list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace perigee::checkpoint {

std::string listed(const std::vector<std::string>& names, const std::vector<std::string>& others) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < std::min<size_t>(names.size(), 5); ++i) {
    const auto near = nearest(names[i], others);
    parts.push_back(names[i] + (near.empty() ? "" : fmt::format(" (nearest: {})", near)));
  }
  const auto more = names.size() - parts.size();
  return fmt::format("{}{}", fmt::join(parts, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace perigee::checkpoint
