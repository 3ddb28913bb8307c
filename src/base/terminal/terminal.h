// Standard error as a terminal.
#pragma once

#include <string>
#include <string_view>

namespace perigee {

struct Terminal {
  bool moves = false;    // standard error is a terminal whose last line can be replaced
  bool colours = false;  // and it may have colours (no-color.org)

  // Reads TERM ("dumb" can replace nothing) and NO_COLOR.
  static Terminal of_standard_error();
};

// Returns the columns that standard error has now; 80 where they are not known.
int columns_of_standard_error();

// Returns the columns that a text takes: its UTF-8 characters, without escape sequences of colours.
int columns_of(std::string_view text);

// Returns the text's first columns: whole characters, and all of its escape sequences.
std::string first_columns(std::string_view text, int columns);

// Escape sequences.
constexpr std::string_view kGreen = "\x1b[32m", kYellow = "\x1b[33m", kRed = "\x1b[31m",
                           kPlain = "\x1b[0m";

}  // namespace perigee
