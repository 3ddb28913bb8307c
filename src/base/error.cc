#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace perigee {

namespace {

constexpr size_t kLongest = 16'000;  // bytes of a text

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// Returns the text without its middle where it is too long: it may quote a whole file.
std::string shortened(std::string text) {
  if (text.size() <= kLongest) return text;
  size_t first = kLongest / 2, last = text.size() - kLongest / 2;
  while (first > 0 && continues_character(text[first])) --first;
  while (last < text.size() && continues_character(text[last])) ++last;
  return fmt::format("{} [{} bytes are left out] {}", std::string_view(text).substr(0, first),
                     last - first, std::string_view(text).substr(last));
}

// Writes control characters as \xNN: a text may quote a file, and a terminal obeys them.
std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < ' ' && c != '\n' && c != '\t') || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

Error::Error(Status status, std::string_view area, std::string_view text)
    : status_(status), text_(shortened(printable(fmt::format("[{}] {}", area, text)))) {}

namespace {

// Optimal string alignment distance: insert, delete, replace and swap of neighbours cost one each.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  std::iota(d[0].begin(), d[0].end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string nearest(std::string_view name, std::span<const std::string> candidates) {
  size_t best = std::max<size_t>(2, name.size() / 3) + 1;
  std::string found;
  for (const auto& candidate : candidates) {
    // The distance is at least the difference of the lengths, and a name may be a whole file.
    const size_t longer = std::max(name.size(), candidate.size());
    if (longer - std::min(name.size(), candidate.size()) >= best) continue;
    const size_t distance = edit_distance(name, candidate);
    if (distance < best && distance < candidate.size()) {
      best = distance;
      found = candidate;
    }
  }
  if (!found.empty() || name.size() < 3) return found;
  for (const auto& candidate : candidates) {  // a name that was cut short, or half of a longer one
    const bool part = candidate.find(name) != std::string::npos;
    if (part && (found.empty() || candidate.size() < found.size())) found = candidate;
  }
  return found;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> candidates) {
  const auto found = nearest(name, candidates);
  return found.empty() ? "" : fmt::format(", did you mean \"{}\"?", found);
}

}  // namespace perigee
