// A small job, and runs of it through the command.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/command/support.h"

namespace perigee::test {

// A job in a folder of its own, and runs of it. Its losses do not depend on the number of steps.
class TrainingJob {
 public:
  explicit TrainingJob(
      const std::string& model = "kind = \"gpt\"\nlayers = 2\nwidth = 32\nheads = 2\n") {
    file_ = folder_.write("job.toml",
                          "[model]\n" + model + "[data]\ntext = [\"" +
                              std::filesystem::absolute("strategies/data/novels.txt").string() +
                              "\"]\nsequence = 32\n"
                              "[batch]\nglobal = 8\n[optimizer]\nlr = 1e-3\n"
                              "[lr_schedule]\nkind = \"constant\"\nwarmup = 0\n"
                              "[train]\nsteps = 4\nvalidate_every = 0\noutput = \"" +
                              output() + "\"\n[cluster]\ndevice = \"cpu\"\ntimeout = 20\n");
  }
  const Folder& folder() const { return folder_; }
  const std::string& file() const { return file_; }
  std::string output() const { return folder_ / "run"; }
  How how() const { return {.environment = {{"XDG_CACHE_HOME", folder_ / "cache"}}}; }

  // Returns the command line "COMMAND job.toml MORE".
  std::vector<std::string> words(const std::string& command, const std::string& more = "") const {
    return perigee_command(command + " " + file_ + " " + more);
  }
  // Runs the command.
  Ran operator()(const std::string& command, const std::string& more = "") const {
    return run(command + " " + file_ + " " + more, how());
  }
  // Runs a command that must succeed.
  Ran good(const std::string& command, const std::string& more = "") const {
    auto ran = (*this)(command, more);
    INFO(command << " " << more << "\n" << ran.err);
    REQUIRE(ran.status == 0);
    return ran;
  }
  // Runs a command that must be refused. Returns its one short error.
  std::string refused(const std::string& command, const std::string& more = "",
                      int status = 2) const {
    const auto ran = (*this)(command, more);
    INFO(command << " " << more << "\n" << ran.out << ran.err);
    CHECK(ran.status == status);
    CHECK(is_short(ran.err));
    return ran.err;
  }

  std::vector<nlohmann::json> metrics() const {
    const auto text = read(output() + "/metrics.jsonl");
    std::istringstream lines(
        text.substr(0, text.rfind('\n') + 1));  // a killed run's last line is incomplete
    std::vector<nlohmann::json> result;
    for (std::string line; std::getline(lines, line);)
      result.push_back(nlohmann::json::parse(line));
    return result;
  }
  std::vector<double> losses() const {
    std::vector<double> result;
    for (const auto& line : metrics()) {
      if (line.contains("loss")) result.push_back(line["loss"]);
    }
    return result;
  }
  // Returns the steps of the complete checkpoints, ascending.
  std::vector<int> checkpoints() const {
    std::vector<int> steps;
    const std::filesystem::path folder = output() + "/checkpoints";
    for (const auto& name : names_in(folder)) {
      if (name.find(".aside-") != name.npos) continue;
      if (std::filesystem::exists(folder / name / "COMPLETE")) {
        steps.push_back(std::stoi(name.substr(name.find('-') + 1)));
      }
    }
    std::sort(steps.begin(), steps.end());
    return steps;
  }
  // Returns the step of the newest complete checkpoint, or 0.
  int newest_checkpoint() const {
    const auto steps = checkpoints();
    return steps.empty() ? 0 : steps.back();
  }
  // Returns the exported weights, as bytes of the file.
  std::string weights() const {
    const auto file = folder_ / "weights.safetensors";
    const auto ran = run("export " + output() + " -o " + file, how());
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    return read(file);
  }

 private:
  Folder folder_;
  std::string file_;
};

// Arguments of a run that lasts until the test ends it.
inline const std::string kLong = " --set train.steps=1000000 --set train.log_every=1 ";

// Checks the losses of the job's last run, to rounding.
inline void check_losses(const TrainingJob& job, const std::vector<double>& expected) {
  const auto losses = job.losses();
  REQUIRE(losses.size() == expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    CHECK(losses[i] == Approx(expected[i]).epsilon(1e-10));
  }
}

}  // namespace perigee::test
