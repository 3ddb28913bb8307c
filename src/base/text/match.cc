#include "base/text/match.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace perigee {
namespace {

std::vector<std::string_view> components(std::string_view name) {
  std::vector<std::string_view> out;
  if (name.empty()) return out;
  for (;;) {
    const size_t dot = name.find('.');
    out.push_back(name.substr(0, dot));
    if (dot == std::string_view::npos) return out;
    name.remove_prefix(dot + 1);
  }
}

// Wildcard matching in |pattern| * |text| steps: `repeats(p)` may stand for any run of items,
// `same` compares two items.
template <class Pattern, class Text, class Repeats, class Same>
bool match_sequence(const Pattern& pattern, const Text& text, Repeats repeats, Same same) {
  std::vector<char> reached(text.size() + 1);
  reached[0] = 1;
  for (const auto& item : pattern) {
    if (repeats(item)) {
      for (size_t i = 1; i < reached.size(); ++i) reached[i] |= reached[i - 1];
    } else {
      for (size_t i = text.size(); i > 0; --i)
        reached[i] = reached[i - 1] && same(item, text[i - 1]);
      reached[0] = 0;
    }
  }
  return reached[text.size()];
}

bool match_component(std::string_view pattern, std::string_view text) {
  return match_sequence(
      pattern, text, [](char c) { return c == '*'; },
      [](char a, char b) { return a == b || a == '?'; });
}

}  // namespace

bool matches(std::string_view pattern, std::string_view name) {
  return match_sequence(
      components(pattern), components(name), [](std::string_view p) { return p == "**"; },
      match_component);
}

std::string did_you_mean_pattern(std::string_view pattern, std::span<const std::string> names) {
  const auto before = fmt::format("**.{}", pattern);
  for (const auto& wider : {before, fmt::format("{}.**", pattern), before + ".**"}) {
    const auto is_matched = [&](const auto& name) { return matches(wider, name); };
    if (std::ranges::any_of(names, is_matched)) return fmt::format(", did you mean \"{}\"?", wider);
  }
  return did_you_mean(pattern, names);
}

bool matches_any(std::span<const std::string> patterns, std::string_view name) {
  return std::ranges::any_of(patterns, [&](const auto& pattern) { return matches(pattern, name); });
}

}  // namespace perigee
