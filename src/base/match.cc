#include "base/match.h"

namespace perigee {
namespace {

// Cuts the first component off `rest`. Returns it.
std::string_view next_component(std::string_view& rest) {
  const auto dot = rest.find('.');
  const auto component = rest.substr(0, dot);
  rest = dot == std::string_view::npos ? std::string_view() : rest.substr(dot + 1);
  return component;
}

bool component_matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace

bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  auto rest = pattern;
  const auto first = next_component(rest);
  const bool last = first.size() == pattern.size();
  if (first == "**") {
    if (last || matches(rest, name)) return true;
    if (name.empty()) return false;
    next_component(name);
    return matches(pattern, name);
  }
  if (name.empty()) return false;
  const bool only = name.find('.') == std::string_view::npos;
  if (!component_matches(first, next_component(name))) return false;
  if (last) return only;
  return only ? rest == "**" : matches(rest, name);
}

}  // namespace perigee
