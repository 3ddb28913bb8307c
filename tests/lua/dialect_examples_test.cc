// The examples of the systems' documents.
#include <fmt/format.h>

#include <sstream>

#include "base/files/file.h"
#include "tests/lua/support_dialect.h"

using namespace perigee;
using namespace perigee::test;

namespace {

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

}  // namespace

TEST_CASE("every example of a system's document runs, or the error names its contradiction") {
  std::istringstream lines(read_file("tests/lua/dialects/examples.txt", "examples"));
  const Folder folder;
  std::set<std::string> systems;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    INFO(line);
    const auto first = line.find('|'), last = line.rfind('|');
    REQUIRE(first < last);
    const auto system = trimmed(line.substr(0, first));
    const auto expected = trimmed(line.substr(last + 1));
    systems.insert(system);
    const auto found = run(folder,
                           fmt::format("local m = require 'perigee.{}'\nreturn {}", system,
                                       trimmed(line.substr(first + 1, last - first - 1))),
                           "gpt");
    if (expected == "ok") {
      CHECK(found.error == "");
    } else {
      REQUIRE(expected.starts_with("error "));
      CHECK_THAT(found.error, Catch::Contains(expected.substr(6)));
      CHECK_THAT(found.error, Catch::Contains("s.lua:2: "));
    }
  }
  CHECK(systems == std::set<std::string>{"atorch", "autodist", "epl", "megatron"});
}
