// Published plans (strategies/published): predicted against published step times, and the simulated
// steps of the plans that the search finds against those of the published plans.
//
// Usage: bench_published [MATRIX MEMORY [CLUSTER]], in the source folder. MATRIX and MEMORY replace
// the efficiencies of runtime/clusters (of clusters whose name contains CLUSTER), to fit them to
// the rows marked fit. Exits with 1 if the error of a held-out row exceeds 15%, or a published plan
// that fits is faster than the search's.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "base/text/toml.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kPublished = "strategies/published/";

std::string perigee() {
  return (fs::read_symlink("/proc/self/exe").parent_path() / "perigee").string();
}

struct Ran {
  int status = 0;
  std::string out;
};

Ran run(const std::string& command) {
  std::unique_ptr<FILE, int (*)(FILE*)> out(popen((command + " 2>&1").c_str(), "r"), pclose);
  Ran ran;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, out.get()))
    ran.out.append(buffer, n);
  ran.status = pclose(out.release());
  return ran;
}

struct Efficiencies {
  std::string matrix, memory, cluster;
};

// Returns the path of the cluster's file, or of a copy with the given efficiencies.
std::string cluster_file(const std::string& name, const Efficiencies& other, const fs::path& to) {
  const auto file = fmt::format("runtime/clusters/{}.toml", name);
  if (other.matrix.empty() || name.find(other.cluster) == std::string::npos) return file;
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  auto changed = std::regex_replace(text.str(), std::regex("matrix_efficiency = [0-9.]+"),
                                    "matrix_efficiency = " + other.matrix);
  changed = std::regex_replace(changed, std::regex("memory_efficiency = [0-9.]+"),
                               "memory_efficiency = " + other.memory);
  const auto path = to / (name + ".toml");
  std::ofstream(path) << changed;
  return path.string();
}

struct Simulated {
  double seconds = 0, mfu = 0, peak = 0;
  std::string failure;
};

Simulated simulate(const std::string& about) {
  const auto ran = run(fmt::format("{} simulate {} --json", perigee(), about));
  Simulated result;
  // A slow search prints a line before the JSON.
  const auto begin = ran.out.begin() +
                     static_cast<long>(std::min(ran.out.find('{'), ran.out.size()));
  const auto value = json::parse(begin, ran.out.end(), nullptr, false);
  if (ran.status != 0 || value.is_discarded()) {
    result.failure = ran.out.substr(0, 160);
    return result;
  }
  result.seconds = value["step_seconds"];
  result.mfu = value["mfu"];
  for (const auto& rank : value["ranks"]) {
    result.peak = std::max(result.peak, rank["peak_bytes"].get<double>());
  }
  return result;
}

struct Errors {
  double sum = 0, worst = 0;
  int count = 0;
  void add(double error) {
    sum += std::abs(error);
    worst = std::max(worst, std::abs(error));
    ++count;
  }
  std::string text() const {
    return fmt::format("{} rows: mean {:.1f}%, worst {:.1f}%", count, count ? 100 * sum / count : 0,
                       100 * worst);
  }
};

bool compare_with_published_times(const Efficiencies& other, const fs::path& folder) {
  const auto table = toml::parse_file(kPublished + "published.toml");
  Errors fitted, held;
  fmt::print("{:<58} {:>9} {:>9} {:>7} {:>6} {:>5}\n", "published", "measured", "predicted",
             "error", "MFU", "rows");
  for (const auto& node : *table["run"].as_array()) {
    const auto& row = *node.as_table();
    const auto text = [&](const char* key) { return row[key].value_or(std::string()); };
    auto strategy = text("strategy");
    if (strategy.ends_with(".lua")) {
      strategy = kPublished + strategy;
    } else {
      const auto path = folder / "strategy.lua";
      std::ofstream(path) << "-- A published plan.\nlocal m = require \"perigee.methods\"\nreturn "
                          << strategy << "\n";
      strategy = path.string();
    }
    auto about = fmt::format("{}{} --strategy {} --cluster {} --nproc {}", kPublished, text("job"),
                             strategy, cluster_file(text("cluster"), other, folder),
                             row["ranks"].value_or(int64_t{1}));
    if (const auto* sets = row["set"].as_array()) {
      for (const auto& set : *sets) about += " --set " + set.value_or(std::string());
    }
    const auto result = simulate(about);
    const bool fit = row["fit"].value_or(false);
    const double seconds = row["seconds"].value_or(0.0);
    if (!result.failure.empty()) {
      fmt::print("{:<58} {}\n", text("name"), result.failure);
      if (!fit) held.worst = 1;
      continue;
    }
    // The error of MFU, which is published: measured / predicted time - 1.
    const double error = seconds / result.seconds - 1;
    (fit ? fitted : held).add(error);
    fmt::print("{:<58} {:>7.2f} s {:>7.2f} s {:>6.1f}% {:>5.1f}% {:>5}\n", text("name"), seconds,
               result.seconds, 100 * error, 100 * result.mfu, fit ? "fit" : "held");
    std::fflush(stdout);
  }
  fmt::print("fitted {}\nheld out {}\n", fitted.text(), held.text());
  return held.worst <= 0.15;
}

bool compare_with_search(const Efficiencies& other, const fs::path& folder) {
  struct PublishedPlan {
    const char *name, *cluster;
    int ranks;
    const char* search = "auto.lua";
    std::string job = name;
  };
  bool good = true;
  fmt::print("{:<15} {:>6} {:>10} {:>10} {:>8} {:>10} {:>7}\n", "published plan", "ranks",
             "its step", "its bytes", "search", "its bytes", "ratio");
  for (const auto& plan :
       {PublishedPlan{"gpt3-175b", "384x8xa100", 64}, PublishedPlan{"llama-70b", "384x8xa100", 64},
        PublishedPlan{"llama-405b", "1024x8xh100", 8192},
        PublishedPlan{"llama-405b-80gb", "1024x8xh100", 8192, "auto-fused.lua", "llama-405b"},
        PublishedPlan{"moe-64e", "32x8xh100", 256}}) {
    const auto cluster = fmt::format(" --cluster {} --nproc {}",
                                     cluster_file(plan.cluster, other, folder), plan.ranks);
    const auto own = simulate(kPublished + plan.name + ".lua" + cluster);
    const auto found = simulate(kPublished + plan.job + ".toml --strategy " + kPublished +
                                plan.search + cluster);
    if (!own.failure.empty() || !found.failure.empty()) {
      fmt::print("{:<15} {}{}\n", plan.name, own.failure, found.failure);
      good = false;
      continue;
    }
    const bool fits = own.peak <= 0.92 * 80e9;
    const double ratio = found.seconds / own.seconds;
    fmt::print("{:<15} {:>6} {:>8.2f} s {:>7.1f} GB {:>6.2f} s {:>7.1f} GB {:>7.3f}{}\n", plan.name,
               plan.ranks, own.seconds, own.peak / 1e9, found.seconds, found.peak / 1e9, ratio,
               fits ? "" : "  (the published plan does not fit)");
    std::fflush(stdout);
    if (fits && ratio > 1 + 1e-9) good = false;
  }
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  Efficiencies other;
  if (argc > 2) other = {argv[1], argv[2], argc > 3 ? argv[3] : ""};
  const auto folder = fs::temp_directory_path() / fmt::format("perigee-published-{}", getpid());
  fs::create_directories(folder);
  const bool predicted = compare_with_published_times(other, folder);
  const bool matched = !other.matrix.empty() || compare_with_search(other, folder);
  fs::remove_all(folder);
  return predicted && matched ? 0 : 1;
}
