// Commands of a user without a home, such as a service.
#include <catch2/catch.hpp>
#include <set>
#include <sstream>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;

namespace {

// Runs a command without HOME and XDG_CACHE_HOME.
Ran run_without_home(const std::string& arguments) {
  std::vector<std::string> words = {"env", "-u", "HOME", "-u", "XDG_CACHE_HOME"};
  for (const auto& word : perigee_command(arguments)) words.push_back(word);
  return Process(words).wait();
}

// Returns the names of all commands, as the command lists them.
std::set<std::string> all_commands() {
  std::istringstream lines(run("--help").out);
  std::set<std::string> names;
  bool listed = false;
  for (std::string line; std::getline(lines, line);) {
    std::string name;
    if (listed && std::istringstream(line) >> name) names.insert(name);
    listed = listed || line == "Subcommands:";
  }
  return names;
}

}  // namespace

TEST_CASE("every command works without a home, or says in one sentence that it needs one") {
  const TrainingJob job;
  const auto small = job.file() + " --set model.layers=1 --set model.width=16 ";
  const auto plan = job.folder() / "plan.json";
  const std::vector<std::pair<std::string, int>> commands = {
      {"train " + small + "--nproc 1 --set train.checkpoint_every=2", 0},
      {"evaluate " + small + "--nproc 1", 0},
      {"sample " + small + "--prompt a --tokens 2", 0},
      {"chat " + small + "--tokens 2 --template " +
           job.folder().write("chat.jinja", "{{ messages[0].content }}"),
       0},
      {"export " + job.output() + " -o " + (job.folder() / "weights.safetensors"), 0},
      {"plan " + small + "-o " + plan, 0},
      {"simulate " + small, 0},
      {"graph " + small, 0},
      {"check strategies/data_parallel/ddp.lua", 0},
      {"mesh data=2", 0},
      {"schedule 1f1b --stages 2 --microbatches 4", 0},
      {"lua runtime/perigee/options.lua", 0},
      {"solve tests/solve/examples/assign/01-chain.json", 0},
      {"new " + (job.folder() / "new"), 0},
      {"tokenize README.md --tokenizer bytes --json", 0},
      {"plot " + job.output(), 0},
      {"serve " + small + "--host 0.0.0.0", 2},  // it would not end by itself
      {"watch " + (job.folder() / "none"), 2},   // it would not end by itself
      {"doctor", 0},
      {"profile " + small + "--seconds 1", 2}};  // measurements are kept in the home
  std::set<std::string> tried;
  for (const auto& [arguments, status] : commands) {
    tried.insert(arguments.substr(0, arguments.find(' ')));
    const auto ran = run_without_home(arguments);
    INFO(arguments << "\n" << ran.err);
    CHECK(ran.status == status);
    if (status != 0) CHECK(is_short(ran.err));
  }
  CHECK(tried == all_commands());
}
