// Every command of the tutorials is run, and its output compared with the page.
//
// A page of runtime/tutorials has, in fenced blocks:
// - files, each after a line that ends in its name: "... in `job.toml`:";
// - `console` blocks: a line "$ COMMAND" and the lines that it prints on either stream. A line
//   "..." stands for any lines, "..." within a line for any text, and numbers for any numbers.
//   The ports 29500 to 29509 of a command are replaced by free ports of this host.
// - other blocks, after a line that names no file, are not used.
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <regex>
#include <sstream>

#include "tests/command/support.h"

using namespace perigee::test;
namespace fs = std::filesystem;

namespace {

struct Step {
  std::string file, content;             // a file to write, or
  std::string command;                   // a command to run, and
  std::vector<std::string> expectation;  // the lines that it prints
};

std::vector<Step> steps_of(const std::string& page) {
  std::vector<Step> steps;
  std::istringstream lines(page);
  const std::regex names_file(".*`([^` ]+)`[^`]*:$");
  std::string before;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("```")) {
      if (!line.empty()) before = line;
      continue;
    }
    const auto language = line.substr(3);
    std::string content;
    while (std::getline(lines, line) && line != "```") content += line + "\n";
    std::smatch name;
    if (language == "console") {
      std::istringstream block(content);
      while (std::getline(block, line)) {
        if (line.starts_with("$ ")) {
          steps.push_back({.command = line.substr(2)});
        } else if (!steps.empty()) {
          steps.back().expectation.push_back(line);
        }
      }
    } else if (std::regex_match(before, name, names_file)) {
      steps.push_back({.file = name[1], .content = content});
    }
    before.clear();
  }
  return steps;
}

// Returns the line as a pattern.
std::regex pattern_of(const std::string& line) {
  static const std::regex number(R"((\d[\d,]*(\.\d+)?|\.\d+)(e[-+]?\d+)?)");
  static const std::regex special(R"([\\^$.|?*+()\[\]{}])");
  auto text = std::regex_replace(line, number, "\x01");
  std::string made;
  for (size_t at = 0; at < text.size();) {
    if (text.compare(at, 3, "...") == 0) {
      made += ".*";
      at += 3;
      continue;
    }
    made += text[at] == '\x01' ? R"([\d.,e+-]+)"
                               : std::regex_replace(text.substr(at, 1), special, R"(\$&)");
    ++at;
  }
  return std::regex(made);
}

// Returns the first expected line that the output does not have in its place; "" where it has all.
std::string missing(const std::vector<std::string>& expectation, const std::string& output) {
  std::vector<std::string> printed;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) printed.push_back(line);
  size_t at = 0;
  bool anywhere = false;
  for (const auto& line : expectation) {
    if (line == "...") {
      anywhere = true;
      continue;
    }
    const auto pattern = pattern_of(line);
    while (anywhere && at < printed.size() && !std::regex_match(printed[at], pattern)) ++at;
    if (at >= printed.size() || !std::regex_match(printed[at], pattern)) return line;
    ++at;
    anywhere = false;
  }
  return !anywhere && at < printed.size() ? "nothing after line " + std::to_string(at) : "";
}

// Replaces the ports 29500 to 29509 of a command by free ports of this host.
std::string with_free_ports(const std::string& command) {
  static const std::regex port(R"(\b2950\d\b)");
  std::map<std::string, int> free;
  std::string made;
  auto rest = command.begin();
  for (std::sregex_iterator found(command.begin(), command.end(), port), end; found != end;
       ++found) {
    made.append(rest, (*found)[0].first);
    const auto [at, added] = free.try_emplace(found->str());
    if (added) at->second = free_port();
    made += std::to_string(at->second);
    rest = (*found)[0].second;
  }
  return made.append(rest, command.end());
}

void follow(const std::string& name) {
  const Folder folder;
  for (const auto& step : steps_of(read("runtime/tutorials/" + name))) {
    if (!step.file.empty()) {
      folder.write(step.file, step.content);
      continue;
    }
    const auto command = with_free_ports(step.command);
    INFO("$ " << command);
    Process process({"/bin/sh", "-c", "exec 2>&1; " + command},
                    {.environment = {{"PATH", fs::path(command_path()).parent_path().string() +
                                                  ":" + std::getenv("PATH")},
                                     {"XDG_CACHE_HOME", folder / "cache"}},
                     .folder = folder.path(),
                     .seconds = 200});
    const auto ran = process.wait();
    INFO(ran.out);
    CHECK(missing(step.expectation, ran.out) == "");
    REQUIRE(ran.status == 0);
  }
}

}  // namespace

TEST_CASE("expected lines stand for numbers and for other lines, and nothing else") {
  CHECK(missing({"step 1/4, loss 2.5"}, "step 3/4, loss 1e-05\n") == "");
  CHECK(missing({"a (b) ... end"}, "a (b) and so on end\n") == "");
  CHECK(missing({"a", "...", "d"}, "a\nb\nc\nd\n") == "");
  CHECK(missing({"a", "..."}, "a\nb\n") == "");
  CHECK(missing({"a", "d"}, "a\nb\nd\n") == "d");
  CHECK(missing({"a"}, "a\nb\n") == "nothing after line 1");
  CHECK(missing({"step 1", "b"}, "step 1\n") == "b");
  CHECK(missing({"loss 2"}, "loss x\n") == "loss 2");
}

TEST_CASE("the tutorial of a strategy is true") { follow("strategy.md"); }

TEST_CASE("the tutorial of clusters is true") { follow("cluster.md"); }

TEST_CASE("the tutorial of a C++ module is true") { follow("module.md"); }

TEST_CASE("the tutorial of fine-tuning is true") { follow("fine_tuning.md"); }

TEST_CASE("every tutorial has a test") {
  std::vector<std::string> pages;
  for (const auto& file : fs::directory_iterator("runtime/tutorials")) {
    pages.push_back(file.path().filename().string());
  }
  std::ranges::sort(pages);
  CHECK(pages ==
        std::vector<std::string>{"cluster.md", "fine_tuning.md", "module.md", "strategy.md"});
}
