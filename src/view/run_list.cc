#include "view/run_list.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/fail.h"
#include "base/files/file.h"
#include "base/text/bytes.h"
#include "base/text/toml.h"
#include "base/text/utf8.h"
#include "plan/diff.h"
#include "plan/plan.h"
#include "view/run_format.h"
#include "view/trace_times.h"

namespace perigee::view {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kLogBytes = 64 << 10;
constexpr int64_t kMostTraceBytes = 128 << 20;  // of a trace that is shown

bool is_run(const fs::path& folder) {
  std::error_code ignored;
  if (fs::exists(folder / "metrics.jsonl", ignored)) return true;
  return fs::exists(folder / "job.toml", ignored) && fs::exists(folder / "plan.json", ignored);
}

// Returns the file's text, or its last `most` bytes from the begin of a line; "" where there is no
// file that can be read.
std::string text_of(const fs::path& path, int64_t most = -1) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::error_code ignored;
  if (!file || !fs::is_regular_file(path, ignored)) return "";
  const auto size = static_cast<int64_t>(file.tellg());
  const auto begin = most >= 0 && size > most ? size - most : 0;
  file.seekg(begin);
  std::string text(static_cast<size_t>(size - begin), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return begin > 0 ? text.substr(std::min(text.find('\n') + 1, text.size())) : text;
}

// Returns the job's keys ("train.steps") and their values as TOML.
std::map<std::string, std::string> keys_of(const fs::path& job) {
  std::map<std::string, std::string> keys;
  toml::table table;
  try {
    table = toml::parse(text_of(job));
  } catch (const toml::parse_error&) {
    return keys;  // being written, or damaged
  }
  const auto add = [&](const auto& self, const std::string& prefix,
                       const toml::table& values) -> void {
    for (const auto& [name, value] : values) {
      const auto key = prefix.empty() ? std::string(name.str())
                                      : prefix + "." + std::string(name.str());
      if (const auto* inner = value.as_table()) {
        self(self, key, *inner);
        continue;
      }
      std::ostringstream text;
      value.visit([&](const auto& of) { text << of; });
      const auto* number = value.as_floating_point();  // toml++ prints 0.1 with 17 digits
      keys[key] = number ? fmt::format("{}", number->get()) : text.str();
    }
  };
  add(add, "", table);
  return keys;
}

// Returns {"kinds", "ranks"}; null where the file is not there or is damaged.
json memory_kinds_of(const fs::path& path) {
  auto memory = json::parse(text_of(path), nullptr, /*allow_exceptions=*/false);
  const auto is_list = [&](const char* key) {
    return memory.is_object() && memory.contains(key) && memory[key].is_array();
  };
  if (!is_list("kinds") || !is_list("ranks")) return nullptr;
  for (const auto& rank : memory["ranks"]) {
    if (!rank.is_array() || rank.size() != memory["kinds"].size()) return nullptr;
    if (!std::ranges::all_of(rank, [](const auto& bytes) { return bytes.is_number(); }))
      return nullptr;
  }
  return memory;
}

// Returns the last texts of samples.jsonl, oldest first: {"step", "prompt", "text"}.
json samples_of(const fs::path& path) {
  auto samples = json::array();
  std::istringstream lines(text_of(path, kLogBytes));
  for (std::string line; std::getline(lines, line);) {
    auto sample = json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto is_text = [&](const char* key) {
      return sample.contains(key) && sample[key].is_string();
    };
    const bool whole = sample.is_object() && sample.contains("step") &&
                       sample["step"].is_number_integer() && is_text("prompt") && is_text("text");
    if (whole) samples.push_back(std::move(sample));
  }
  return samples;
}

json last_of(const Metrics& metrics, std::string_view name) {
  const auto* values = metrics.find(name);
  if (!values) return nullptr;
  const auto found = std::find_if(values->rbegin(), values->rend(),
                                  [](double value) { return std::isfinite(value); });
  return found == values->rend() ? json() : json(*found);
}

// Returns a number that changes with the file; null where it is not there.
json version_of(const fs::path& path) {
  std::error_code error;
  const auto time = fs::last_write_time(path, error);
  return error ? json() : json(time.time_since_epoch().count());
}

// Returns why the run cannot be read, which may be known; null where it can.
json problem_of(const std::string& folder, const std::string& known) {
  if (!known.empty()) return known;
  try {
    require_run_format(folder);
    return nullptr;
  } catch (const Error& error) {
    return error.what();
  }
}

double seconds_since_change(const fs::path& path) {
  std::error_code error;
  const auto time = fs::last_write_time(path, error);
  if (error) return 0;
  return std::chrono::duration<double>(fs::file_time_type::clock::now() - time).count();
}

std::string state_of(const fs::path& folder, const Metrics& metrics) {
  if (!metrics.summary().is_null()) return "finished";
  const auto last = last_of(metrics, "step_s");
  const double patience = 60 + 20 * (last.is_null() ? 0.0 : last.get<double>());
  const auto file = metrics.rows() > 0 ? folder / "metrics.jsonl" : folder / "job.toml";
  return seconds_since_change(file) > patience ? "stopped" : "running";
}

}  // namespace

struct RunList::Trace {
  std::pair<int64_t, fs::file_time_type> version{-1, {}};  // bytes and time of the file
  json times;

  const json& read(const fs::path& path) {
    std::error_code error;
    const auto bytes = fs::file_size(path, error);
    if (error) return times = nullptr;
    const std::pair now{static_cast<int64_t>(bytes), fs::last_write_time(path, error)};
    if (error || now == version) return times;
    version = now;
    if (now.first > kMostTraceBytes) {
      return times = {{"error", fmt::format("trace.json has {}, and this page reads {}: "
                                            "ui.perfetto.dev shows it",
                                            bytes_text(double(now.first)),
                                            bytes_text(double(kMostTraceBytes)))}};
    }
    try {
      times = trace_times(text_of(path));
    } catch (const Error& refused) {
      times = {{"error", refused.what()}};
    }
    return times;
  }
};

RunList::RunList(std::vector<std::string> paths) : paths_(std::move(paths)) {
  for (const auto& path : paths_) {
    if (!fs::is_directory(path)) {
      fail("view", "runs are in folders, but \"{}\" is {}", path,
           fs::exists(path) ? "none" : "not there");
    }
  }
  refresh();
}

void RunList::refresh() {
  std::erase_if(entries_, [](const Entry& entry) { return !is_run(entry.folder); });
  for (const auto& path : paths_) {
    if (is_run(path)) {
      add(path);
      continue;
    }
    std::error_code ignored;
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(path, ignored)) {
      if (entry.is_directory(ignored) && is_run(entry.path()))
        found.push_back(entry.path().string());
    }
    std::ranges::sort(found);
    for (const auto& folder : found) add(folder);
  }
  for (auto& entry : entries_) {
    try {
      entry.metrics->read();
      entry.problem.clear();
    } catch (const Error& error) {
      entry.problem = error.what();
    }
  }
}

void RunList::add(const std::string& folder) {
  const auto path = fs::path(folder).lexically_normal();
  const auto where = (path.filename().empty() ? path.parent_path() : path).string();
  if (std::ranges::any_of(entries_, [&](const Entry& e) { return e.folder == where; })) return;
  auto name = fs::absolute(where).filename().string();
  const auto is_taken = [&](const std::string& wanted) {
    return std::ranges::any_of(entries_, [&](const Entry& e) { return e.name == wanted; });
  };
  if (is_taken(name)) name = where;
  entries_.push_back({name, where,
                      std::make_shared<Metrics>((fs::path(where) / "metrics.jsonl").string()),
                      std::make_shared<Trace>(), ""});
}

const RunList::Entry& RunList::entry(std::string_view name) const {
  const auto found = std::ranges::find_if(entries_, [&](const Entry& e) { return e.name == name; });
  if (found != entries_.end()) {
    require_run_format(found->folder);
    return *found;
  }
  fail("view", "a run must be one of the list, but there is no \"{}\"", name);
}

json RunList::overview() const {
  std::vector<std::pair<double, json>> runs;
  for (const auto& entry : entries_) {
    const auto& metrics = *entry.metrics;
    const fs::path folder = entry.folder;
    if (auto problem = problem_of(entry.folder, entry.problem); !problem.is_null()) {
      json run = {{"name", entry.name}, {"folder", entry.folder}, {"state", "unreadable"}};
      for (const char* key : {"steps", "of", "loss", "val_loss", "tokens_per_s", "mfu"}) {
        run[key] = nullptr;
      }
      run["seconds"] = run["damaged"] = 0;
      run["problem"] = std::move(problem);
      runs.emplace_back(seconds_since_change(folder / "metrics.jsonl"), std::move(run));
      continue;
    }
    const auto keys = keys_of(folder / "job.toml");
    const auto steps = keys.find("train.steps");
    double seconds = 0;
    if (const auto* times = metrics.find("step_s")) {
      for (const double time : *times) seconds += std::isfinite(time) ? time : 0;
    }
    runs.emplace_back(
        seconds_since_change(folder / "metrics.jsonl"),
        json{{"name", entry.name},
             {"folder", entry.folder},
             {"state", state_of(folder, metrics)},
             {"steps", last_of(metrics, "step")},
             {"of", steps == keys.end() ? json() : json(std::atoll(steps->second.c_str()))},
             {"loss", last_of(metrics, "loss")},
             {"val_loss", last_of(metrics, "val_loss")},
             {"tokens_per_s", last_of(metrics, "tokens_per_s")},
             {"mfu", last_of(metrics, "mfu")},
             {"seconds", seconds},
             {"damaged", metrics.damaged()},
             {"problem", nullptr}});
  }
  std::ranges::stable_sort(runs, {}, [](const auto& run) { return run.first; });
  auto list = json::array();
  for (auto& [age, run] : runs) list.push_back(std::move(run));
  return list;
}

json RunList::details(std::string_view name) const {
  const auto& found = entry(name);
  const fs::path folder = found.folder;
  auto decisions = json::array();
  json plan;
  if (const auto text = text_of(folder / "plan.json"); !text.empty()) {
    try {
      const auto parsed = plan::parse(text, "plan.json");
      for (const auto& decision : parsed.decisions) {
        decisions.push_back({{"by", decision.by}, {"sentence", decision.sentence}});
      }
      plan = {{"predicted_step_s", parsed.prediction.step_seconds},
              {"predicted_peak_bytes", parsed.prediction.peak_bytes}};
    } catch (const Error& error) {
      decisions.push_back({{"by", "plan"}, {"sentence", error.what()}});
    }
  }
  const auto of_ranks = [&](const std::string& key) {
    auto list = json::array();
    for (int64_t rank = 0;; ++rank) {
      const auto column = key + "[" + std::to_string(rank) + "]";
      if (!found.metrics->find(column)) return list;
      list.push_back(last_of(*found.metrics, column));
    }
  };
  return {{"name", found.name},
          {"folder", found.folder},
          {"job", text_of(folder / "job.toml")},
          {"decisions", decisions},
          {"plan", plan},
          {"report", version_of(folder / "plan.html")},
          {"log", text_of(folder / "log.txt", kLogBytes)},
          {"memory", of_ranks("peak_bytes")},
          {"compute_s", of_ranks("compute_s")},
          {"wait_s", of_ranks("wait_s")},
          {"memory_kinds", memory_kinds_of(folder / "memory.json")},
          {"trace", found.trace->read(folder / "trace.json")},
          {"samples", samples_of(folder / "samples.jsonl")},
          {"summary", found.metrics->summary()}};
}

std::string RunList::report(std::string_view name) const {
  return text_of(fs::path(entry(name).folder) / "plan.html");
}

std::vector<Chart> RunList::charts(const std::vector<std::string>& names,
                                   const PlotOptions& options) const {
  std::vector<Run> runs;
  for (const auto& name : names) {
    const auto& found = entry(name);
    runs.push_back({found.name, found.metrics});
  }
  return plots(runs, options);
}

json RunList::differences(std::string_view a, std::string_view b) const {
  const fs::path of_a = entry(a).folder, of_b = entry(b).folder;
  const auto keys_a = keys_of(of_a / "job.toml"), keys_b = keys_of(of_b / "job.toml");
  std::map<std::string, std::pair<std::string, std::string>> all;
  for (const auto& [key, value] : keys_a) all[key].first = value;
  for (const auto& [key, value] : keys_b) all[key].second = value;
  auto job = json::array();
  for (const auto& [key, values] : all) {
    if (values.first == values.second) continue;
    job.push_back({{"key", key}, {"a", values.first}, {"b", values.second}});
  }
  std::string plans;
  const auto plan_a = text_of(of_a / "plan.json"), plan_b = text_of(of_b / "plan.json");
  if (!plan_a.empty() && !plan_b.empty()) {
    plans = plan::to_text(
        plan::difference(plan::parse(plan_a, "plan.json"), plan::parse(plan_b, "plan.json")),
        std::string(a), std::string(b));
  }
  return {{"job", job}, {"plan", plans}};
}

}  // namespace perigee::view
