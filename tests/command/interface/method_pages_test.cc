// The example of each page of runtime/methods: its strategy is the shipped one, and its command
// prints the shown decisions.
#include <catch2/catch.hpp>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "tests/command/support.h"

using namespace perigee;
using Catch::Matchers::Contains;

namespace {

struct Example {
  std::string strategy;  // Lua
  std::string command;   // after "perigee "
  std::string name;      // of the shipped strategy
  std::string output;
};

// Returns the fenced block after `mark`, which it must have.
std::string block_after(const std::string& text, const std::string& mark) {
  const auto begin = text.find("```" + mark + "\n");
  REQUIRE(begin != std::string::npos);
  const auto first = begin + mark.size() + 4;
  return text.substr(first, text.find("```", first) - first);
}

Example example_of(const std::string& page) {
  const auto text = page.substr(page.find("\n## Example\n"));
  const std::regex pattern("`perigee (plan [^`]* --strategy ([a-z0-9_]+) [^`]*)` prints");
  std::smatch found;
  REQUIRE(std::regex_search(text, found, pattern));
  // A line that starts with two blanks continues the previous one.
  const auto output = std::regex_replace(block_after(text, "text"), std::regex("\n  "), " ");
  return {block_after(text, "lua"), found[1], found[2], output};
}

std::string shipped(const std::string& name) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator("strategies")) {
    if (entry.path().filename() == name + ".lua") return test::read(entry.path());
  }
  return "";
}

}  // namespace

TEST_CASE("each method's page shows a shipped strategy and the decisions that its command prints") {
  int pages = 0;
  for (const auto& entry : std::filesystem::directory_iterator("runtime/methods")) {
    if (entry.path().filename() == "README.md") continue;
    INFO(entry.path());
    const auto example = example_of(test::read(entry.path()));
    CHECK_THAT(shipped(example.name), Catch::Matchers::EndsWith(example.strategy));
    const auto ran = test::run(example.command);
    REQUIRE(ran.status == 0);
    std::set<std::string> printed;
    std::istringstream output(ran.out), shown(example.output);
    for (std::string line; std::getline(output, line);) printed.insert(line);
    for (std::string line; std::getline(shown, line);) {
      INFO(ran.out << "lacks the line of the page: " << line);
      CHECK(printed.contains(line));
    }
    ++pages;
  }
  CHECK(pages == 24);
}
