// Matching of dotted names: scopes ("blocks.3.attn"), parameters ("blocks.3.attn.qkv.weight").
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace perigee {

// Returns whether `pattern` matches the whole of `name`, in time proportional to the product of
// their lengths. In a pattern a component `*` is any one component, `**` any number of them (none,
// too), and `*` or `?` inside a component are any characters and any one character of it:
// "embed.**" matches "embed" and "embed.tokens.weight".
bool matches(std::string_view pattern, std::string_view name);

// Returns whether any of the patterns matches.
bool matches_any(std::span<const std::string> patterns, std::string_view name);

// Returns the end of a message about a pattern that matches none of the names: where it matches some
// with `**` before or after it, `, did you mean "**.attn.**"?`, else did_you_mean().
std::string did_you_mean_pattern(std::string_view pattern, std::span<const std::string> names);

}  // namespace perigee
