#include "base/terminal/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

namespace perigee {
namespace {

// Returns the bytes of the colour's escape sequence that the text begins with; 0: it begins with none.
size_t escape_at(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const auto end = text.find_first_not_of("0123456789;", 2);
  return end != text.npos && text[end] == 'm' ? end + 1 : 0;
}

// Calls f(part, is_escape) for each character and escape sequence.
template <class F>
void for_each_part(std::string_view text, F f) {
  while (!text.empty()) {
    auto length = escape_at(text);
    const bool escape = length > 0;
    if (!escape) {
      length = 1;
      while (length < text.size() && (text[length] & 0xc0) == 0x80) ++length;
    }
    f(text.substr(0, length), escape);
    text.remove_prefix(length);
  }
}

}  // namespace

Terminal Terminal::of_standard_error() {
  const auto is = [](const char* name, std::string_view value) {
    const char* found = std::getenv(name);
    return found && found == value;
  };
  const char* plain = std::getenv("NO_COLOR");
  Terminal terminal;
  terminal.moves = ::isatty(STDERR_FILENO) == 1 && !is("TERM", "dumb");
  terminal.colours = terminal.moves && !(plain && *plain);
  return terminal;
}

int columns_of_standard_error() {
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col : 80;
}

int columns_of(std::string_view text) {
  int columns = 0;
  for_each_part(text, [&](std::string_view, bool escape) { columns += !escape; });
  return columns;
}

std::string first_columns(std::string_view text, int columns) {
  std::string kept;
  for_each_part(text, [&](std::string_view part, bool escape) {
    if (escape || columns-- > 0) kept += part;
  });
  return kept;
}

}  // namespace perigee
