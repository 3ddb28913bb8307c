// The output of `perigee profile --export` ("perigee.profile/1"), read back.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "profile/database.h"

namespace perigee::profile {

using Entries = std::vector<std::pair<Database::Key, std::string>>;  // value: JSON

// Throws Error naming the file and the first entry that is not one.
Entries read_export(const std::string& text, const std::string& file);

// Returns a field of an object, a number from 0 to 1e18, or nothing.
std::optional<double> number(const nlohmann::json& json, const char* field);

}  // namespace perigee::profile
