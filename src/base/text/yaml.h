// YAML files, and JSON, which is a part of it.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace perigee {

struct Yaml {
  nlohmann::json value;                  // numbers, true, false and null where they are not quoted
  std::map<std::string, int64_t> lines;  // by JSON pointer ("/0/name"), from 1
};

// Returns the text's one document. Throws Error ("[yaml] FILE:LINE:COLUMN: ...") for text that is
// not YAML, for several documents, and for a key that is not a string or occurs twice.
Yaml parse_yaml(std::string_view text, const std::string& file);

}  // namespace perigee
