// The command in a folder, as the tests of models from files run it.
#pragma once

#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace perigee::test {

// Runs build/perigee (or the program that PERIGEE_COMMAND names) in the folder, which also holds
// its caches. Returns the exit status, and both streams together.
inline std::pair<int, std::string> run_in(const std::string& folder, const std::string& arguments) {
  const char* command = std::getenv("PERIGEE_COMMAND");
  const char* build = std::getenv("PERIGEE_BUILD");
  const auto path = command ? std::string(command)
                            : std::string(build ? build : "build") + "/perigee";
  const auto line = "cd " + folder + " && XDG_CACHE_HOME=" + folder + " timeout 60 " +
                    std::filesystem::absolute(path).string() + " " + arguments + " 2>&1";
  std::unique_ptr<FILE, int (*)(FILE*)> out(popen(line.c_str(), "r"), [](FILE*) { return 0; });
  REQUIRE(out);
  std::string text;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, out.get())) text.append(buffer, n);
  const int status = pclose(out.release());
  return {WEXITSTATUS(status), text};
}

// Returns the losses of a run's metrics.jsonl.
inline std::vector<double> losses_of(const std::string& run) {
  std::ifstream file(run + "/metrics.jsonl");
  std::vector<double> losses;
  for (std::string line; std::getline(file, line);) {
    const auto metrics = nlohmann::json::parse(line);
    if (metrics.contains("loss")) losses.push_back(metrics.at("loss"));
  }
  return losses;
}

}  // namespace perigee::test
