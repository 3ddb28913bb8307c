// Runs the command in processes, with a cache folder of the benchmark's own.
#pragma once

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace perigee::bench {

// Runs a command line; returns its standard output and error. `status`: the exit status; without
// it, a failure of the command ends the benchmark.
inline std::string run(const std::string& line, int* status = nullptr) {
  std::unique_ptr<FILE, int (*)(FILE*)> out(popen((line + " 2>&1").c_str(), "r"), pclose);
  std::string text;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, out.get())) text.append(buffer, n);
  const int ended = pclose(out.release());
  const int code = WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
  if (status) *status = code;
  if (!status && code != 0) {
    fmt::print(stderr, "{}\n{}", line, text);
    std::exit(1);
  }
  return text;
}

// A temporary folder, and the command of the same build with its cache in this folder.
class Command {
 public:
  explicit Command(const std::string& name)
      : folder_(std::filesystem::temp_directory_path() /
                fmt::format("perigee-{}-{}", name, getpid())),
        perigee_(std::filesystem::read_symlink("/proc/self/exe").parent_path() / "perigee") {
    std::filesystem::create_directories(folder_);
    ::setenv("XDG_CACHE_HOME", (folder_ / "cache").c_str(), 1);
  }
  ~Command() { std::filesystem::remove_all(folder_); }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  // Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& text) const {
    const auto path = folder_ / name;
    std::ofstream(path) << text;
    return path.string();
  }

  std::string run(const std::string& arguments, int* status = nullptr) const {
    return bench::run(perigee_.string() + " " + arguments, status);
  }

  // Trains, and appends the seconds of all steps after the first `warm` ones.
  void train(const std::string& arguments, int warm, std::vector<double>& seconds) const {
    const auto output = folder_ / "run";
    run(fmt::format("train {} --overwrite --set train.output={}", arguments, output.string()));
    std::ifstream file(output / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto value = nlohmann::json::parse(line);
      if (value.contains("step") && value["step"].get<int>() > warm)
        seconds.push_back(value["step_s"]);
    }
  }

 private:
  const std::filesystem::path folder_, perigee_;
};

}  // namespace perigee::bench
