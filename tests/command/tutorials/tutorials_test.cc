// Every command of the tutorials is run, and its output compared with the page.
//
// A page of runtime/tutorials has, in fenced blocks:
// - files, each after a line that ends in its name: "... in `job.toml`:";
// - `console` blocks: a line "$ COMMAND" and the lines that it prints on either stream. A line
//   "..." stands for any lines, "..." within a line for any text, and numbers for any numbers:
//   but losses must be those of the page within 1%, and counts of parameters the same.
//   The ports 29500 to 29509 of a command are replaced by free ports of this host.
// - other blocks, after a line that names no file, are not run; those of shells and YAML are parsed.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "base/text/yaml.h"
#include "tests/command/support.h"

using namespace perigee::test;
namespace fs = std::filesystem;

namespace {

// Returns the contents of the page's fenced blocks of a language.
std::vector<std::string> blocks_of(const std::string& page, const std::string& language) {
  std::vector<std::string> blocks;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("```")) continue;
    const bool wanted = line == "```" + language;
    std::string content;
    while (std::getline(lines, line) && line != "```") content += line + "\n";
    if (wanted) blocks.push_back(content);
  }
  return blocks;
}

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

// A line as a pattern, with the numbers that it compares.
struct Pattern {
  std::regex text;                                 // captures the numbers
  std::vector<std::pair<double, double>> numbers;  // value, relative tolerance
};

Pattern pattern_of(const std::string& line) {
  static const std::regex number(R"((\d[\d,]*(\.\d+)?|\.\d+)(e[-+]?\d+)?)");
  static const std::regex special(R"([\\^$.|?*+()\[\]{}])");
  Pattern pattern;
  std::string made;
  const auto add_text = [&](std::string text) {
    for (size_t at; (at = text.find("...")) != std::string::npos; text = text.substr(at + 3)) {
      made += std::regex_replace(text.substr(0, at), special, R"(\$&)") + ".*";
    }
    made += std::regex_replace(text, special, R"(\$&)");
  };
  auto rest = line.begin();
  for (std::sregex_iterator found(line.begin(), line.end(), number), end; found != end; ++found) {
    const std::string before(line.begin(), (*found)[0].first),
        after((*found)[0].second, line.end());
    add_text({rest, (*found)[0].first});
    rest = (*found)[0].second;
    const bool loss = before.ends_with("loss "), count = after.starts_with(" parameters, ");
    made += loss || count ? R"(([\d.,e+-]*\d))" : R"([\d.,e+-]+)";
    if (loss || count) pattern.numbers.emplace_back(std::stod(found->str()), loss ? 1e-2 : 0);
  }
  add_text({rest, line.end()});
  pattern.text = made;
  return pattern;
}

bool matches(const std::string& printed, const Pattern& pattern) {
  std::smatch found;
  if (!std::regex_match(printed, found, pattern.text)) return false;
  for (size_t i = 0; i < pattern.numbers.size(); ++i) {
    const auto [value, tolerance] = pattern.numbers[i];
    if (!(std::abs(std::stod(found[i + 1]) - value) <= tolerance * std::abs(value))) return false;
  }
  return true;
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
    while (anywhere && at < printed.size() && !matches(printed[at], pattern)) ++at;
    if (at >= printed.size() || !matches(printed[at], pattern)) return line;
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
  CHECK(missing({"step 1/4, loss 2.5, 10 tokens/s"}, "step 3/4, loss 2.51, 1e-05 tokens/s\n") ==
        "");
  for (const auto* other : {"loss 2.6", "loss 2.4", "loss 25", "loss nan", "loss 2.5e-05"}) {
    CHECK(missing({"loss 2.5"}, std::string(other) + "\n") == "loss 2.5");
  }
  CHECK(missing({"1200 parameters, 1 rank"}, "1200 parameters, 2 rank\n") == "");
  CHECK(missing({"1200 parameters, 1 rank"}, "1201 parameters, 1 rank\n") != "");
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

TEST_CASE("the scripts and manifests of the tutorials are well-formed, with options that exist") {
  const auto help = run("train --help").out;
  int scripts = 0, manifests = 0, options = 0;
  const auto check_options = [&](const std::string& command) {
    std::istringstream words(
        command.substr(std::min(command.find("perigee train"), command.size())));
    for (std::string word; words >> word;) {
      if (!word.starts_with("--")) continue;
      INFO(word);
      CHECK(help.find("  " + word) != std::string::npos);
      ++options;
    }
  };
  for (const auto& file : fs::directory_iterator("runtime/tutorials")) {
    INFO(file.path());
    for (const auto& script : blocks_of(read(file.path()), "sh")) {
      const Folder folder;
      const auto path = folder.write("script", script);
      CHECK(Process({"/bin/sh", "-n", path}).wait().status == 0);
      CHECK(Process({"/bin/sh", "-n", folder.write("bad", script + "fi\n")}).wait().status != 0);
      check_options(script);
      ++scripts;
    }
    for (const auto& manifest : blocks_of(read(file.path()), "yaml")) {
      size_t begin = 0;
      for (size_t end; begin <= manifest.size(); begin = end + 5) {
        end = std::min(manifest.find("\n---\n", begin), manifest.size());
        const auto part = manifest.substr(begin, end - begin) + "\n";
        const auto value = perigee::parse_yaml(part, file.path()).value;
        CHECK(value["metadata"]["name"] == "perigee");
        if (value["kind"] == "Job") {
          const auto& container = value["spec"]["template"]["spec"]["containers"].at(0);
          CHECK(container["command"] == nlohmann::json{"sh", "-c"});
          check_options(container["args"].at(0).get<std::string>());
        }
        ++manifests;
      }
    }
  }
  CHECK(scripts == 4);
  CHECK(manifests == 2);
  CHECK(options >= 8);
}

TEST_CASE("every tutorial has a test") {
  std::vector<std::string> pages;
  for (const auto& file : fs::directory_iterator("runtime/tutorials")) {
    pages.push_back(file.path().filename().string());
  }
  std::ranges::sort(pages);
  CHECK(pages ==
        std::vector<std::string>{"cluster.md", "fine_tuning.md", "module.md", "strategy.md"});
}
