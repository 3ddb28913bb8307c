// Limits on the nesting of texts from files and messages. Their values are copied, printed and
// destroyed by recursion, which a text of a million brackets would take past the end of the stack.
#pragma once

#include <string_view>

namespace perigee {

// Throws Error (invalid) of that area where lists and objects of a JSON text are nested more than
// 200 deep. `name`: the text's, for the message. Any other text passes: the parser refuses it.
void check_json_depth(std::string_view text, std::string_view area, std::string_view name);

// The same for TOML where a key has more than 100 parts ("a.b.c" has three); lists and inline
// tables are limited by the parser.
void check_toml(std::string_view text, std::string_view area, std::string_view name);

}  // namespace perigee
