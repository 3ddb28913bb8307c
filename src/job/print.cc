// Writes a job as TOML, compares two jobs, and writes the reference page.
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/files/glob.h"
#include "job/keys.h"

namespace perigee::job {
namespace {

namespace fs = std::filesystem;

fs::path absolute(const std::string& path, bool is_pattern) {
  const auto here = fs::current_path().string();
  return (fs::path(is_pattern ? pattern_of(here) : here) / path).lexically_normal();
}

void make_absolute(std::string& path, bool is_pattern) {
  path = absolute(path, is_pattern).string();
}

// Writes paths as seen from `folder`.
std::string relative_to(const std::string& folder, const std::string& path, bool is_pattern) {
  const auto from = absolute(is_pattern ? pattern_of(folder) : folder, is_pattern);
  return absolute(path, is_pattern).lexically_relative(from).string();
}

// Calls `change` with each path of the job, and whether it is a pattern.
template <class F>
void each_path(Job& job, F change) {
  const auto in = [&](const JobKey& key, ListEntry& entry) {
    const Ref value = ref(key, job, entry);
    if (auto* const* list = std::get_if<std::vector<std::string>*>(&value)) {
      for (auto& path : **list) change(path, true);
    } else {
      auto& path = *std::get<std::string*>(value);
      if (!names_no_file(key, path)) change(path, false);
    }
  };
  for (const auto& key : keys()) {
    if (!key.is_path) continue;
    if (!key.kinds.empty() && !job.model.values.contains(key.name)) continue;
    ListEntry entry;
    if (key.table != "data.sources") in(key, entry);
    for (auto& source : job.data.sources) {
      if (key.table != "data.sources") break;
      entry.source = std::move(source);
      in(key, entry);
      source = std::move(entry.source);
    }
  }
}

// Returns the keys of the job that are given or have a constant default, with their values as TOML.
std::vector<std::pair<const JobKey*, std::string>> values_of(const Job& original) {
  Job job = original;
  ListEntry unused;
  std::vector<std::pair<const JobKey*, std::string>> out;
  for (const auto& key : keys()) {
    if (is_list(key.table)) continue;
    if (!key.kinds.empty() && find_key("model", key.name, job.model.kind) != &key) continue;
    if (!key.otherwise.empty() && is_initial(key, job, unused)) continue;
    out.emplace_back(&key, toml_of(ref(key, job, unused)));
  }
  return out;
}

// Returns the keys of an entry of a list that are given.
std::string entry_text(std::string_view table, ListEntry entry) {
  Job unused;
  std::string out;
  for (const auto& key : keys()) {
    if (key.table != table || (!key.otherwise.empty() && is_initial(key, unused, entry))) continue;
    const auto value = toml_of(ref(key, unused, entry));
    if (!value.empty() && value != "[]") out += fmt::format("{} = {}\n", key.name, value);
  }
  return out;
}

// Return the entries of the lists, each with its head.
std::string groups_text(const Job& job) {
  std::string out;
  for (const auto& group : job.optimizer.groups) {
    out += "\n[[optimizer.group]]\n" + entry_text("optimizer.group", {.group = group});
  }
  return out;
}

std::string sources_text(const Job& job) {
  std::string out;
  for (const auto& source : job.data.sources) {
    out += "\n[[data.sources]]\n" + entry_text("data.sources", {.source = source});
  }
  return out;
}

std::string options_text(const Job& job) {
  std::string out;
  for (const auto& [name, value] : job.model.options) {
    std::string key = name;
    Value copy = value;
    const auto text = std::visit([](auto& v) { return toml_of(&v); }, copy);
    out += fmt::format("{} = {}\n", toml_of(&key), text);
  }
  return out;
}

// Escapes a text for a row of a Markdown table.
std::string cell(const std::string& text) {
  std::string out;
  for (char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

void reference_rows(std::string& out, const std::string& table, const std::string& kind) {
  out += "| key | value | default | meaning |\n|---|---|---|---|\n";
  for (const auto& key : keys()) {
    const bool is_own = kind.empty()
                            ? key.kinds.empty()
                            : !key.kinds.empty() && find_key("model", key.name, kind) == &key;
    if (key.table != table || !is_own) continue;
    Job job;
    ListEntry entry;
    const auto initial = fmt::format("`{}`", toml_of(ref(key, job, entry)));
    auto value = type_of(key);
    if (const auto limits = limits_of(key); !limits.empty()) value += ", " + limits;
    out += fmt::format("| `{}` | {} | {} | {} |\n", key.name, cell(value),
                       key.otherwise.empty() ? initial : key.otherwise, cell(key.about));
  }
}

// Returns whether the key, where a job does not give it, has a value that follows from other keys or
// from files.
bool follows(const JobKey& key) {
  return !key.otherwise.empty() && key.table != "data" && key.path() != "model.around";
}

// Returns, as "key: old became new", the wanted keys whose values differ.
std::vector<std::string> differences(const Job& before, const Job& now,
                                     const std::function<bool(const JobKey&)>& wanted) {
  Job a = before, b = now;
  each_path(a, make_absolute);
  each_path(b, make_absolute);
  std::map<std::string, std::string> values_a, values_b;
  for (const auto& [key, text] : values_of(a)) values_a[key->path()] = text;
  for (const auto& [key, text] : values_of(b)) values_b[key->path()] = text;
  std::vector<std::string> lines;
  for (const auto& key : keys()) {
    if (!wanted(key)) continue;
    const auto in_a = values_a.find(key.path()), in_b = values_b.find(key.path());
    const bool is_old = in_a != values_a.end(), is_new = in_b != values_b.end();
    if (!is_old && !is_new) continue;
    const bool schedules = key.table.ends_with("schedule") && is_new;
    if ((!is_old || !is_new) && follows(key) && !schedules && a.model.kind == b.model.kind)
      continue;
    const auto old_text = in_a == values_a.end() ? "nothing" : in_a->second;
    const auto new_text = in_b == values_b.end() ? "nothing" : in_b->second;
    auto line = fmt::format("{}: {} became {}", key.path(), old_text, new_text);
    if (old_text == new_text) continue;
    // Kinds share names of keys.
    if (std::ranges::find(lines, line) == lines.end()) lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace

std::string to_toml(const Job& original, const std::string& folder) {
  Job job = original;
  if (!folder.empty()) {
    each_path(job, [&](std::string& path, bool is_pattern) {
      path = relative_to(folder, path, is_pattern);
    });
  }
  std::string out, table;
  const auto values = values_of(job);
  for (const auto& [key, text] : values) {
    if (key->table != table) {
      if (table == "model" && !job.model.options.empty()) {
        out += "\n[model.options]\n" + options_text(job);
      }
      table = key->table;
      out += fmt::format("\n[{}]\n", table);
    }
    out += fmt::format("{} = {}\n", key->name, text);
  }
  out += sources_text(job) + groups_text(job);
  if (!job.dialect.name.empty()) out += "\n" + job.dialect.text;
  return out;
}

std::vector<std::string> changed_keys(const Job& before, const Job& now) {
  static const std::set<std::string> fixed = {"model",     "data", "batch",
                                              "optimizer", "seed", "train.forward_only"};
  auto lines = differences(before, now, [](const JobKey& key) {
    return (fixed.contains(key.table) || fixed.contains(key.path())) && !key.adjustable;
  });
  if (options_text(before) != options_text(now)) lines.push_back("model.options changed");
  const auto kept = [](const Job& job) {
    auto groups = job.optimizer.groups;
    for (auto& group : groups) group.lr = group.weight_decay = std::nullopt;
    return groups;
  };
  if (kept(before) != kept(now)) lines.push_back("optimizer.group changed");
  const auto sources = [](Job job) {
    each_path(job, make_absolute);
    return sources_text(job);
  };
  if (sources(before) != sources(now)) lines.push_back("data.sources changed");
  return lines;
}

std::vector<std::string> adjusted_keys(const Job& before, const Job& now) {
  static const std::set<std::string> schedules = {"lr_schedule", "weight_decay_schedule"};
  auto lines = differences(before, now, [](const JobKey& key) {
    return key.adjustable || schedules.contains(key.table);
  });
  const auto& old_groups = before.optimizer.groups;
  const auto& new_groups = now.optimizer.groups;
  const auto text = [](const std::optional<double>& value) {
    return value ? fmt::format("{}", *value) : "the optimizer's";
  };
  for (size_t g = 0; g < std::min(old_groups.size(), new_groups.size()); ++g) {
    const auto add = [&](const char* key, const auto& from, const auto& to) {
      if (from == to) return;
      lines.push_back(
          fmt::format("{} of optimizer.group {}: {} became {}", key, g + 1, text(from), text(to)));
    };
    add("lr", old_groups[g].lr, new_groups[g].lr);
    add("weight_decay", old_groups[g].weight_decay, new_groups[g].weight_decay);
  }
  return lines;
}

std::vector<std::pair<std::string, std::string>> shared_keys(const Job& original) {
  Job job = original;
  each_path(job, [](std::string& path, bool) { path = fs::path(path).filename().string(); });
  std::map<std::string, std::string> values;
  for (const auto& [key, text] : values_of(job)) {
    if (!key->per_host) values[key->path()] = text;
  }
  values["model.options"] = options_text(job);
  values["optimizer.group"] = groups_text(job);
  values["data.sources"] = sources_text(job);
  if (!job.dialect.name.empty()) {
    auto& table = values["the table of " + job.dialect.name];
    for (const char c : job.dialect.text) table += c == '\n' ? ' ' : c;
  }
  return {values.begin(), values.end()};
}

std::string reference() {
  std::string out =
      "# Keys of a job\n\n"
      "This page is made from the table in src/job/table.cc. A job is a TOML file; only "
      "`model.kind`\n"
      "must be given. Paths are relative to the job's file, that of `train.output` to the working\n"
      "directory. `--set a.b=VALUE` changes a key from the command line.\n\n";
  for (const auto& table : tables()) {
    if (table == "optimizer.group") {
      out += "## [[optimizer.group]]\n\nOptions of some parameters; may repeat.\n\n";
    } else if (table == "data.sources") {
      out +=
          "## [[data.sources]]\n\nOne of several sources that are mixed, each with one of text, "
          "tokens, jsonl and conversations; may repeat.\n\n";
    } else {
      out += table.empty() ? "## Top\n\n" : fmt::format("## [{}]\n\n", table);
    }
    reference_rows(out, table, "");
    if (table == "model") {
      for (const auto& kind : kinds()) {
        out += fmt::format("\n### kind = \"{}\"\n\n", kind);
        reference_rows(out, table, kind);
      }
    }
    out += '\n';
  }
  out +=
      "## Dialects\n\n"
      "`[megatron]`, `[epl]`, `[atorch]`, `[alpa]` or `[autodist]` replaces a strategy, in\n"
      "the names of that system; `strategy` is then not set. The keys are those of\n"
      "runtime/perigee/NAME.lua, which checks them: `perigee lua runtime/perigee/options.lua` "
      "lists them.\n";
  return out;
}

}  // namespace perigee::job
