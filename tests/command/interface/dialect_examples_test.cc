// `perigee check` of the examples of other systems' documents, with plans of a real search.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <set>
#include <sstream>

#include "tests/command/job.h"

using namespace perigee::test;
using Catch::Contains;

namespace {

// An example of tests/lua/dialects/examples.txt.
struct Example {
  std::string system, text, expected;
};

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

std::vector<Example> examples() {
  std::istringstream lines(read("tests/lua/dialects/examples.txt"));
  std::vector<Example> list;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    const auto first = line.find('|'), last = line.rfind('|');
    list.push_back({trimmed(line.substr(0, first)),
                    trimmed(line.substr(first + 1, last - first - 1)),
                    trimmed(line.substr(last + 1))});
  }
  return list;
}

}  // namespace

TEST_CASE("check accepts every example of a system's document, or names its contradiction") {
  const TrainingJob job("kind = \"gpt\"\nlayers = 4\nwidth = 16\nheads = 2\ntied = false\n");
  const auto script = job.folder() / "s.lua";
  std::set<std::string> systems;
  for (const auto& [system, text, expected] : examples()) {
    INFO(system << " " << text);
    job.folder().write("s.lua",
                       fmt::format("local m = require 'perigee.{}'\nreturn {}", system, text));
    // The documents' batches: 2 samples times 4 microbatches, one for each of 16 data ranks, and one
    // for each of 16 microbatches.
    const bool large = system == "atorch" || system == "alpa";
    const auto batch = large ? " --set batch.global=16" : "";
    const auto ran = run("check " + script + " " + job.file() + batch, job.how());
    INFO(ran.out << ran.err);
    systems.insert(system);
    if (expected == "ok") {
      CHECK(ran.status == 0);
      CHECK_THAT(ran.out, Contains("no mistakes found"));
    } else {
      CHECK(ran.status != 0);
      CHECK_THAT(ran.err, Contains(expected.substr(6)) && Contains("s.lua:2: "));
    }
  }
  CHECK(systems == std::set<std::string>{"alpa", "atorch", "autodist", "epl", "megatron"});
}
