// The documented order of passes equals the executed order.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "compile/pipeline.h"
#include "tests/support/golden.h"

using namespace perigee;

namespace {

// Returns the rows "level | pass | purpose" of the page's tables as compile::list_passes
// prints them.
std::vector<std::string> documented_passes(const std::string& page) {
  std::vector<std::string> passes;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| ") || line.starts_with("| level |")) continue;
    std::vector<std::string> cells;
    std::istringstream row(line.substr(2));
    for (std::string cell; std::getline(row, cell, '|');) {
      cells.push_back(cell.substr(0, cell.find_last_not_of(' ') + 1));
      cells.back().erase(0, cells.back().find_first_not_of(' '));
    }
    if (cells.size() == 3) passes.push_back(cells[0] + ": " + cells[1] + ": " + cells[2]);
  }
  return passes;
}

}  // namespace

TEST_CASE("the page of the compiler lists the passes in the order in which they run") {
  const auto documented = documented_passes(test::read_text("src/compile/DESIGN.md"));
  CHECK(documented.size() > 30);
  CHECK(documented == compile::list_passes());
}
