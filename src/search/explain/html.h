// HTML by hand: escaping, tables and shapes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace perigee::search::html {

// Returns the text with & < > " ' as references, and control characters as blanks.
std::string escape(std::string_view text);

// A cell is text, not markup. `numbers` columns are aligned right.
struct Table {
  std::vector<std::string> head;
  std::vector<bool> numbers;
  std::vector<std::vector<std::string>> rows;
};
std::string to_html(const Table& table);

// Returns the document's beginning up to <body>, with the page's style, and its end.
std::string begin(std::string_view title);
std::string end();

// A bar of several parts, each with a share of `whole` and a name that shows when pointed at.
struct Part {
  std::string name;
  double size = 0;
  std::string color;
};
std::string bar(const std::vector<Part>& parts, double whole);

// Returns a row of colours with their names.
std::string legend(const std::vector<Part>& parts);

}  // namespace perigee::search::html
