// Matching of dotted names: scopes ("blocks.3.attn"), parameters ("blocks.3.attn.qkv.weight").
#pragma once

#include <string_view>

namespace perigee {

// Returns whether `pattern` matches the whole of `name`. In a pattern a component `*` is any one component, `**` any number
// of them (none, too), and `*` or `?` inside a component are any characters and any one character of it.
bool matches(std::string_view pattern, std::string_view name);

}  // namespace perigee
