// The JSON of a tokenizer file, read as the tokenizers library reads it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace perigee::text {

// Throws Error naming the file where it cannot be read or is no JSON.
nlohmann::json read_json(const std::string& path);

// Returns a number of JSON, as the library's parser (Rust's serde_json) has it: for numbers of many
// digits it may be the double next to the nearest one. Scores that are sums of these decide which
// of two divisions of a word is the better one.
double json_number(std::string_view text);

}  // namespace perigee::text
