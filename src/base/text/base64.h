// Base64 (RFC 4648, with padding), for bytes inside text formats.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace perigee {

std::string base64_encode(std::string_view bytes);

// Returns the bytes, or nothing where `text` is not base64.
std::optional<std::string> base64_decode(std::string_view text);

}  // namespace perigee
