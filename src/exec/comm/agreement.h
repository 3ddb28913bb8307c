// The settings that all ranks of a job must share: version, model, data, optimizer, ...
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace perigee::exec {

// Names and values as text, in a fixed order.
using Settings = std::vector<std::pair<std::string, std::string>>;

// Returns the settings, and this program's version, as text for the other ranks.
std::string print_settings(const Settings& settings);

// Compares the settings of `who` ("rank 3", "this host") with the text of rank 0. Returns "" where
// they are equal, else a sentence with the first three names that differ and both values.
std::string settings_difference(const std::string& text_of_rank_0, const std::string& who,
                                const Settings& settings);

}  // namespace perigee::exec
