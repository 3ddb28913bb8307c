// Lists of tensors in messages.
#pragma once

#include <string>
#include <vector>

namespace perigee::checkpoint {

// Returns the first five names, each with the nearest of the others where one is near.
std::string listed(const std::vector<std::string>& names, const std::vector<std::string>& others);

}  // namespace perigee::checkpoint
