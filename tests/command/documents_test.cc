// The examples of runtime/README.md and strategies/ are what the code reads and writes.
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "graph/graph.h"
#include "job/job.h"
#include "lua/strategy.h"
#include "plan/plan.h"
#include "tests/command/support.h"

using namespace perigee;
using Catch::Matchers::Contains;

namespace {

std::string page() { return test::read("runtime/README.md"); }

// Returns the fenced block of the page that holds the text.
std::string block_with(const std::string& text) {
  std::istringstream lines(page());
  std::string block;
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) {
      if (inside && block.find(text) != std::string::npos) return block;
      inside = !inside;
      block.clear();
    } else if (inside) {
      block += line + "\n";
    }
  }
  return "";
}

// Returns the indented lines of a section ("## 2."), without their indentation.
std::string indented_lines(const std::string& section) {
  const auto text = page();
  const auto begin = text.find(section);
  REQUIRE(begin != std::string::npos);
  std::istringstream lines(text.substr(begin, text.find("\n## ", begin) - begin));
  std::string result;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("    ")) result += line.substr(4) + "\n";
  }
  return result;
}

}  // namespace

TEST_CASE("the page's plan is a plan as it is printed") {
  const auto text = block_with("perigee.plan/1");
  CHECK(plan::print(plan::parse(text)) == text);
}

TEST_CASE("the page's graph is a graph as it is printed") {
  const auto text = block_with("perigee.graph/1");
  const auto graph = graph::parse(text);
  graph::verify(graph);
  CHECK(graph::print(graph) == text);
}

TEST_CASE("the page's job and strategy are read") {
  const std::vector<std::string> there = {"data.text=[\"strategies/data/jargon.txt\"]"};
  const auto job = job::Job::parse(indented_lines("## 2."), "page.toml", there);
  CHECK(job.name == "gpt-small");
  CHECK(job.model.integer("layers") == 4);
  test::Folder folder;
  lua::StrategyScript script(folder.write("s.lua", block_with("perigee.methods")));
  CHECK(script.resolve({}, {}).methods.size() == 3);
}

TEST_CASE("the page's saved strategy is what perigee.strategy loads") {
  test::Folder folder;
  folder.write("saved.json", block_with("perigee.strategy/1"));
  lua::StrategyScript script(
      folder.write("s.lua", "return assert(require('perigee.strategy').load('saved.json'))"));
  CHECK(script.resolve({}, {}).methods.size() == 2);
}

TEST_CASE("the page lists every command and option") {
  const auto text = page();
  std::istringstream lines(test::run("--help").out);
  bool commands = false;
  int count = 0;
  for (std::string line; std::getline(lines, line);) {
    if (commands && line.starts_with("  ")) {
      const auto name = line.substr(2, line.find(' ', 2) - 2);
      INFO(name);
      CHECK_THAT(text, Contains("\n    perigee " + name + " "));
      std::istringstream options(test::run(name + " --help").out);
      for (std::string option; std::getline(options, option);) {
        if (!option.starts_with("  --")) continue;
        const auto end = option.find_first_of(" ,{", 2);
        CHECK_THAT(text, Contains(option.substr(2, end - 2)));
      }
      ++count;
    }
    if (line.starts_with("Subcommands")) commands = true;
  }
  CHECK(count == 13);
}

TEST_CASE("every shipped job and strategy is read") {
  int jobs = 0, strategies = 0;
  for (const auto& entry : std::filesystem::directory_iterator("strategies")) {
    INFO(entry.path());
    if (entry.path().extension() == ".toml") {
      const auto job = job::Job::load(entry.path().string());
      CHECK(job.train.output == "runs/" + job.name);
      ++jobs;
    } else if (entry.path().extension() == ".lua") {
      CHECK(test::run("check " + entry.path().string()).status == 0);
      ++strategies;
    }
  }
  CHECK(jobs >= 5);
  CHECK(strategies >= 3);
}
