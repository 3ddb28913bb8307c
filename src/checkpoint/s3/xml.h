// The few forms of XML that an S3 service answers with.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace perigee::checkpoint::s3 {

// Returns the contents of all elements <NAME>...</NAME>, of any depth, in their order, as they are
// in the text. Elements of the name must not hold each other.
std::vector<std::string_view> elements(std::string_view text, std::string_view name);

// Returns the text of the first such element with its character references resolved; ""
// without one.
std::string element(std::string_view text, std::string_view name);

}  // namespace perigee::checkpoint::s3
