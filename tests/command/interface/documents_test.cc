// The code accepts or writes the examples of README.md, of formats and of shipped strategies.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/version.h"
#include "graph/graph.h"
#include "job/job.h"
#include "lua/strategy.h"
#include "plan/plan.h"
#include "tests/command/support.h"

using namespace perigee;
using Catch::Matchers::Contains;

namespace {

std::string page(const std::string& name) { return test::read("runtime/" + name + ".md"); }

// Returns the fenced block of a document that holds the text.
std::string block_with(const std::string& text, const std::string& document) {
  std::istringstream lines(document);
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

// Returns the indented lines of a document, without their indentation.
std::string indented_lines(const std::string& document) {
  std::istringstream lines(document);
  std::string result;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("    ")) result += line.substr(4) + "\n";
  }
  return result;
}

// Returns the output that the README shows after a command, up to the next command.
std::string shown_output(const std::string& command) {
  const auto shown = block_with("$ " + command, test::read("README.md"));
  const auto begin = shown.find("$ " + command + "\n") + command.size() + 3;
  return shown.substr(begin, shown.find("$ ", begin) - begin);
}

// Returns the text with every number replaced, which differs from machine to machine.
std::string without_numbers(const std::string& text) {
  return std::regex_replace(text, std::regex("[0-9]+([.:][0-9]+)?"), "#");
}

// Returns the log without the texts that the model writes.
std::string without_samples(const std::string& log) {
  return std::regex_replace(log, std::regex("(a sample after step [0-9]+: ).*"), "$1");
}

// Returns the first of the shown lines that an output does not have in its place, or "". "..." stands
// for any lines.
std::string first_difference(const std::string& shown, const std::string& output) {
  std::istringstream expected(shown), lines(output);
  bool any = false;
  for (std::string line, found; std::getline(expected, line);) {
    if (line == "...") {
      any = true;
      continue;
    }
    do {
      if (!std::getline(lines, found) || (!any && found != line)) return line;
    } while (found != line);
    any = false;
  }
  return "";
}

// Returns C++ code with string literals that follow each other as one.
std::string joined_literals(const std::string& code) {
  std::string joined;
  size_t begin = 0;
  for (auto quote = code.find('"'); quote != std::string::npos; quote = code.find('"', quote + 1)) {
    const auto next = code.find_first_not_of(" \n", quote + 1);
    if (next == std::string::npos || next == quote + 1 || code[next] != '"') continue;
    joined += code.substr(begin, quote - begin);
    begin = next + 1;
    quote = next;
  }
  return joined + code.substr(begin);
}

// Returns the loss of a step in a run's log.
double loss_at(const std::string& log, int step) {
  std::smatch found;
  const std::regex line("step " + std::to_string(step) + "/[0-9]+, loss ([0-9.]+)");
  REQUIRE(std::regex_search(log, found, line));
  return std::stod(found[1]);
}

}  // namespace

TEST_CASE("the README shows the sample job's strategy and its commands' output") {
  const auto readme = test::read("README.md");
  CHECK(std::ranges::count(readme, '\n') <= 60);
  CHECK_THAT(test::read("strategies/data_parallel/ddp.lua"),
             Contains(block_with("perigee.methods", readme)));
  const auto job = job::Job::load("strategies/gpt.toml");
  CHECK(job.strategy == "ddp");

  test::Folder folder;
  const test::How how{.environment = {{"XDG_CACHE_HOME", folder / "cache"}}, .seconds = 100};
  const std::string brief = " --set train.output=" + (folder / "run") +
                            " --set train.steps=30 --set lr_schedule.warmup=20";
  const auto shown = without_samples(shown_output("build/perigee train strategies/gpt.toml"));
  const auto trained = test::run("train strategies/gpt.toml" + brief, how);
  INFO(trained.err);
  REQUIRE(trained.status == 0);
  // A run as short as this one prints the same lines but for numbers. Ranks of a loaded machine may
  // be named as slow.
  auto log = std::regex_replace(trained.err, std::regex("rank 0: (warning: .*|rank .* again)\n"),
                                "");
  log = std::regex_replace(log, std::regex(test::command_path()), "build/perigee");
  log = std::regex_replace(log, std::regex(brief), "");  // the next commands have these options
  log = without_samples(std::regex_replace(log, std::regex(folder / "run"), "runs/gpt"));
  CHECK(log.substr(0, log.find('\n')) == shown.substr(0, shown.find('\n')));
  CHECK(first_difference(without_numbers(shown), without_numbers(log)) == "");
  CHECK(first_difference(without_numbers(shown) + "more\n", without_numbers(log)) == "more");
  CHECK(loss_at(trained.err, 1) == Approx(loss_at(shown, 1)).epsilon(1e-3));
  CHECK(loss_at(trained.err, 30) < loss_at(trained.err, 1) - 0.8);
  CHECK_THAT(shown, Contains(fmt::format("step {}/{}, ", job.train.steps, job.train.steps)));
  CHECK(loss_at(shown, static_cast<int>(job.train.steps)) < 5);

  const auto planned = test::run("plan strategies/gpt.toml --explain", how);
  CHECK(without_numbers(planned.out) ==
        without_numbers(shown_output("build/perigee plan strategies/gpt.toml --explain")));
  const auto sentences = planned.out.substr(0, planned.out.find("predicted peak"));
  CHECK_THAT(readme, Contains(sentences));

  const auto resumed = test::run("train strategies/gpt.toml --resume" + brief, how);
  CHECK(resumed.status == 0);
  CHECK_THAT(resumed.err, Contains("all 30 steps are done"));
  const auto sampled = test::run({"sample", "strategies/gpt.toml", "--checkpoint", folder / "run",
                                  "--prompt", "Mr. Darcy", "--tokens", "4"},
                                 how);
  CHECK(sampled.status == 0);
  CHECK_THAT(sampled.out, Catch::Matchers::StartsWith("Mr. Darcy"));
}

TEST_CASE("the page shows a plan in its printed form") {
  const auto text = block_with("perigee.plan/1", page("formats/plan"));
  CHECK(plan::print(plan::parse(text)) == text);
}

TEST_CASE("the page shows a graph in its printed form") {
  const auto text = block_with("perigee.graph/1", page("formats/graph"));
  const auto graph = graph::parse(text);
  graph::verify(graph);
  CHECK(graph::print(graph) == text);
}

TEST_CASE("the page's job and strategy are accepted") {
  const std::vector<std::string> existing_data = {"data.text=[\"strategies/data/novels.txt\"]"};
  const auto job = job::Job::parse(indented_lines(page("jobs")), "page.toml", existing_data);
  CHECK(job.name == "gpt-small");
  CHECK(job.model.integer("layers") == 4);
  test::Folder folder;
  lua::StrategyScript script(
      folder.write("s.lua", block_with("perigee.methods", page("strategies"))));
  CHECK(script.resolve({}, {}).methods.size() == 3);
}

TEST_CASE("perigee.strategy loads the page's saved strategy") {
  test::Folder folder;
  folder.write("saved.json", block_with("perigee.strategy/1", page("formats/plan")));
  lua::StrategyScript script(
      folder.write("s.lua", "return assert(require('perigee.strategy').load('saved.json'))"));
  CHECK(script.resolve({}, {}).methods.size() == 2);
}

TEST_CASE("a run writes the page's checkpoint index") {
  test::Folder folder;
  const auto job = folder.write("tiny.toml",
                                "model = {kind = 'mlp', inputs = 2, outputs = 3, layers = 1}\n"
                                "batch.global = 2\n"
                                "optimizer = {name = 'sgd', momentum = 0.0}\n"
                                "train = {steps = 1, output = '" +
                                    (folder / "run") + "'}\ncluster.ranks = 2\n");
  const auto strategy = folder.write("data.lua",
                                     "return { { 'parallel_mode', { { 'data', 2 } } } }\n");
  const auto ran = test::run("train " + job + " --strategy " + strategy);
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  auto index = nlohmann::json::parse(test::read(folder / "run/checkpoints/step-1/index.json"));
  auto shown = nlohmann::json::parse(
      block_with("perigee.checkpoint/1", page("formats/checkpoint")));
  // Checksums of weights and plans are not part of the format.
  for (auto* each : {&index, &shown}) {
    CHECK((*each)["plan"].get<std::string>().size() == 32);
    (*each)["plan"] = "";
    for (auto& file : (*each)["files"]) {
      CHECK(file["xxh3_128"].get<std::string>().size() == 32);
      file["xxh3_128"] = "";
    }
  }
  for (auto& tensor : index["tensors"]) {
    for (auto& piece : tensor["pieces"]) {
      CHECK(piece["xxh3_128"].get<std::string>().size() == 32);
      piece.erase("xxh3_128");
    }
  }
  CHECK(shown == index);
}

TEST_CASE("the pages list every command and option") {
  std::string text = page("command_line");
  for (const auto* other : {"planner", "problems", "schedules", "meshes"}) text += page(other);
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
  CHECK(count == 20);
}

TEST_CASE("the questions quote messages that the code has") {
  std::string code;
  for (const auto* folder : {"src", "tools"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      const auto kind = entry.path().extension();
      if (kind == ".cc" || kind == ".h") code += joined_literals(test::read(entry.path().string()));
    }
  }
  code += std::regex_replace(test::read("scripts/libtorch"), std::regex("\\$\\w+"), "{}");
  // Messages of others: pip, the shell and CMake.
  const std::set<std::string> others = {
      "error: externally-managed-environment", "perigee: command not found",
      "Could not find a package configuration file provided by \"Perigee\""};
  const auto questions = page("questions");
  const std::regex quoted("\\*\\*`([^`]+)`");
  int count = 0;
  for (std::sregex_iterator found(questions.begin(), questions.end(), quoted), end; found != end;
       ++found, ++count) {
    // "..." stands for values.
    const auto message = std::regex_replace((*found)[1].str(), std::regex("\\.\\.\\."), "{}");
    INFO(message);
    CHECK((others.contains(message) || code.find(message) != std::string::npos));
  }
  CHECK(count >= 4);
}

TEST_CASE("the changes begin with this version") {
  const auto changes = page("changes");
  const auto begin = changes.find("\n## ");
  REQUIRE(begin != std::string::npos);
  CHECK_THAT(changes.substr(begin + 1), Catch::Matchers::StartsWith("## " + std::string(kVersion)));
}

TEST_CASE("every shipped job and strategy is accepted") {
  int jobs = 0, strategies = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator("strategies")) {
    if (entry.path().parent_path().filename() == "published") continue;  // jobs of large models
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
