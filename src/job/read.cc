// From TOML to a job.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>

#include "base/fail.h"
#include "base/files/file.h"
#include "base/files/glob.h"
#include "base/first_error.h"
#include "base/text/depth.h"
#include "base/text/toml.h"
#include "job/assignment.h"
#include "job/complete.h"
#include "job/keys.h"

namespace perigee::job {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> dialects = {"megatron", "epl", "atorch", "alpa", "autodist"};

std::string describe(const toml::node& node) {
  if (const auto* text = node.as_string()) return fmt::format("\"{}\"", text->get());
  if (const auto* n = node.as_integer()) return std::to_string(n->get());
  if (const auto* n = node.as_floating_point()) return fmt::format("{}", n->get());
  if (const auto* b = node.as_boolean()) return b->get() ? "true" : "false";
  if (node.is_table()) return "a table";
  if (node.is_array()) return "a list";
  return "a date or time";
}

// The source of a key that an assignment sets is the place of the assignment.
bool is_assigned(const toml::source_region& region) {
  return !region.path || region.path->ends_with(": ");
}

// Reads a plain value or an item of a list. Returns false where the type does not match.
bool assign(const toml::node& node, bool& to) {
  const auto* b = node.as_boolean();
  if (b) to = b->get();
  return b;
}
bool assign(const toml::node& node, int64_t& to) {
  const auto* n = node.as_integer();
  if (n) to = n->get();
  return n;
}
bool assign(const toml::node& node, double& to) {
  if (const auto* n = node.as_integer()) {
    to = static_cast<double>(n->get());
    return true;
  }
  const auto* n = node.as_floating_point();
  if (n) to = n->get();
  return n;
}
bool assign(const toml::node& node, std::string& to) {
  const auto* text = node.as_string();
  if (text) to = text->get();
  return text;
}
bool assign(const toml::node& node, std::optional<double>& to) {
  return assign(node, to.emplace());
}

// A single item is a list of one.
template <class T>
bool assign(const toml::node& node, std::vector<T>& to) {
  to.clear();
  const auto* array = node.as_array();
  if (!array) return assign(node, to.emplace_back());
  for (const auto& item : *array) {
    if (!assign(item, to.emplace_back())) return false;
  }
  return true;
}

// Returns "gpt.toml:7:9: ", or the place of an assignment.
std::string at(const toml::source_region& region) {
  if (is_assigned(region)) return region.path ? *region.path : Assignment{}.place;
  return fmt::format("{}:{}:{}: ", *region.path, region.begin.line, region.begin.column);
}

// Reads tables into a job and records each key's place. Paths in the file are relative to `folder`.
class Reader {
 public:
  Reader(Job& job, std::string file, fs::path folder)
      : job_(job), file_(std::move(file)), folder_(std::move(folder)) {}

  // The kind is read first: it determines the keys of [model].
  void root(const toml::table& table) {
    const auto* model = table["model"].as_table();
    if (const auto* kind = model ? model->get("kind") : nullptr) {
      const std::string before = job_.model.kind;
      key("model", "kind", *kind);
      if (job_.model.kind != before) {
        job_.model.values.clear();
        job_.model.options.clear();
      }
    }
    read_table("", table);
  }

  // Returns the place of the key, or else of its table.
  std::string place(std::string_view key) const {
    for (std::string path(key);; path = path.substr(0, path.rfind('.'))) {
      if (const auto found = places_.find(path); found != places_.end()) return found->second;
      if (path.find('.') == std::string::npos) return file_.empty() ? "" : file_ + ": ";
    }
  }

 private:
  // Tables are sorted by name, but the error reported is the first in the file.
  static std::vector<std::pair<const toml::key*, const toml::node*>> in_file_order(
      const toml::table& table) {
    std::vector<std::pair<const toml::key*, const toml::node*>> items;
    for (const auto& [name, node] : table) items.emplace_back(&name, &node);
    std::ranges::stable_sort(items, [](const auto& a, const auto& b) {
      return a.first->source().begin < b.first->source().begin;
    });
    return items;
  }

  void read_table(const std::string& name, const toml::table& table) {
    if (!name.empty()) places_[name] = at(table.source());
    FirstError wrong;
    for (const auto& [key_name, node_pointer] : in_file_order(table)) {
      const auto& node = *node_pointer;
      const std::string item(key_name->str());
      const std::string path = name.empty() ? item : name + "." + item;
      const auto key_at = at(key_name->source());
      const bool is_table = std::ranges::find(tables(), path) != tables().end();
      const auto* inner = is_table && !is_list(path) ? node.as_table() : nullptr;
      if (inner && wrong) continue;  // the error names entries of this table alone
      if (inner) {
        read_table(path, *inner);
        continue;
      }
      wrong.check([&] {
        if (path == "optimizer.group") {
          groups(node);
        } else if (path == "data.sources") {
          sources(node);
        } else if (path == "model.options") {
          options(node);
        } else if (is_table) {
          fail("job", "{}{} is a table, but got {}", at(node.source()), path, describe(node));
        } else if (name.empty() && std::ranges::find(dialects, item) != dialects.end()) {
          dialect(item, node, key_at);
        } else if (find_key(name, item, job_.model.kind)) {
          key(name, item, node);
        } else {
          unknown(name, item, key_at);
        }
      });
    }
    wrong.raise("key", name.empty() ? "the job" : "[" + name + "]");
  }

  void key(const std::string& table, const std::string& name, const toml::node& node) {
    const JobKey& key = *find_key(table, name, job_.model.kind);
    const Ref value = ref(key, job_, entry_);
    const auto place = at(node.source());
    places_[key.path()] = place;
    const auto* flag = takes_booleans(key) ? node.as_boolean() : nullptr;
    if (flag) {
      *std::get<std::string*>(value) = flag->get() ? "true" : "false";
    } else if (!std::visit([&](auto* to) { return assign(node, *to); }, value)) {
      fail("job", "{}{} is {}, but got {}", place, key.path(), type_of(key), describe(node));
    }
    check(key, value, place);
    if (key.is_path && !is_assigned(node.source())) relocate(key, value);
  }

  [[noreturn]] void unknown(const std::string& table, const std::string& name,
                            const std::string& place) const {
    std::vector<std::string> names;
    std::string other_kinds;
    for (const auto& key : keys()) {
      if (key.table != table) continue;
      if (find_key(table, key.name, job_.model.kind)) names.push_back(key.name);
      if (key.name != name) continue;
      for (const auto& kind : key.kinds) other_kinds += (other_kinds.empty() ? "" : ", ") + kind;
    }
    if (!other_kinds.empty()) {
      const auto& kind = job_.model.kind;
      fail("job", "{}model.{} is a key of {}, but the kind is {}{}", place, name, other_kinds,
           kind.empty() ? "not given" : kind, did_you_mean(name, names));
    }
    for (const auto& t : tables()) {
      if (table.empty() && !t.empty()) names.push_back(t);
    }
    fail("job", "{}{} has no key \"{}\"{}", place, table.empty() ? "a job" : "[" + table + "]",
         name, did_you_mean(name, names));
  }

  // Makes a path relative to the working directory. A list is one of patterns.
  void relocate(const JobKey& key, const Ref& value) const {
    const auto move = [&](std::string& path, const fs::path& folder) {
      if (!names_no_file(key, path)) path = (folder / path).lexically_normal().string();
    };
    if (auto* const* list = std::get_if<std::vector<std::string>*>(&value)) {
      for (auto& path : **list) move(path, pattern_of(folder_.string()));
    } else {
      move(*std::get<std::string*>(value), folder_);
    }
  }

  // The dialect's script interprets the keys.
  void dialect(const std::string& name, const toml::node& node, const std::string& place) {
    const auto* table = node.as_table();
    if (!table) fail("job", "{}{} is a table, but got {}", place, name, describe(node));
    if (!job_.dialect.name.empty() && job_.dialect.name != name) {
      fail("job", "{}a job is written in one dialect, but got [{}] and [{}]", place,
           job_.dialect.name, name);
    }
    places_[name] = place;
    require_finite(name, node);
    std::ostringstream text;
    constexpr auto flags = toml::toml_formatter::default_flags &
                           ~(toml::format_flags::indentation |
                             toml::format_flags::allow_literal_strings);
    text << toml::toml_formatter(toml::table{{name, *table}}, flags) << '\n';
    job_.dialect = {name, text.str(), file_, {{"", place}}};
    dialect_places("", *table);
  }

  // toml++ prints no lists of numbers that are not finite.
  void require_finite(const std::string& name, const toml::node& node) {
    if (const auto* number = node.as_floating_point(); number && !std::isfinite(number->get())) {
      fail("job", "{}the numbers of [{}] are finite, but one is {}", at(node.source()), name,
           describe(node));
    }
    if (const auto* table = node.as_table()) {
      for (const auto& [key, inner] : *table) require_finite(name, inner);
    }
    if (const auto* list = node.as_array()) {
      for (const auto& inner : *list) require_finite(name, inner);
    }
  }

  void dialect_places(const std::string& prefix, const toml::table& table) {
    for (const auto& [key, node] : table) {
      const auto path = prefix + std::string(key.str());
      job_.dialect.places[path] = at(key.source());
      if (const auto* inner = node.as_table()) dialect_places(path + ".", *inner);
      const auto* list = node.as_array();
      for (size_t i = 0; list && list->is_array_of_tables() && i < list->size(); ++i) {
        job_.dialect.places[fmt::format("{}.{}", path, i + 1)] = at((*list)[i].source());
      }
    }
  }

  // Reads each table of a list into entry_ and calls `take` with its place.
  void entries(const std::string& name, const toml::node& node,
               const std::function<void(const std::string& place)>& take) {
    const auto* array = node.as_array();
    const auto place = at(node.source());
    places_[name] = place;
    if (!array || !std::ranges::all_of(*array, [](const auto& item) { return item.is_table(); })) {
      fail("job", "{}{} is a list of tables ([[{}]]), but got {}", place, name, name,
           describe(node));
    }
    for (const auto& item : *array) {
      entry_ = {};
      read_table(name, *item.as_table());
      take(at(item.source()));
    }
  }

  void groups(const toml::node& node) {
    job_.optimizer.groups.clear();
    entries("optimizer.group", node, [&](const std::string& place) {
      if (entry_.group.match.empty()) {
        fail("job", "{}optimizer.group.match names parameters, but got none", place);
      }
      job_.optimizer.groups.push_back(entry_.group);
    });
  }

  void sources(const toml::node& node) {
    job_.data.sources.clear();
    entries("data.sources", node,
            [&](const std::string&) { job_.data.sources.push_back(entry_.source); });
  }

  void options(const toml::node& node) {
    const auto* table = node.as_table();
    places_["model.options"] = at(node.source());
    if (!table) {
      fail("job", "{}model.options is a table, but got {}", at(node.source()), describe(node));
    }
    for (const auto& [name, item] : *table) {
      job_.model.options[std::string(name.str())] = option(std::string(name.str()), item);
    }
  }

  template <class T>
  static bool try_option(const toml::node& node, Value& value) {
    T read{};
    if (!assign(node, read)) return false;
    value = std::move(read);
    return true;
  }

  Value option(const std::string& name, const toml::node& node) const {
    Value value;
    if (try_option<bool>(node, value) || try_option<int64_t>(node, value) ||
        try_option<double>(node, value) || try_option<std::string>(node, value) ||
        try_option<std::vector<double>>(node, value) ||
        try_option<std::vector<std::string>>(node, value)) {
      return value;
    }
    fail("job",
         "{}an option is true or false, a number, a string or a list of numbers or strings, "
         "but model.options.{} is {}",
         at(node.source()), name, describe(node));
  }

  Job& job_;
  const std::string file_;
  const fs::path folder_;
  std::map<std::string, std::string> places_;
  ListEntry entry_;  // the entry of a list that is being read
};

toml::table parse_toml(std::string_view text, const std::string& file) {
  check_toml(text, "job", file);
  try {
    return toml::parse(text, file);
  } catch (const toml::parse_error& e) {
    fail("job", "{}:{}:{}: {}", file, e.source().begin.line, e.source().begin.column,
         e.description());
  }
}

// Returns whether the key's value is a string or a list of strings.
bool takes_text(std::string_view path) {
  return std::ranges::any_of(keys(), [&](const JobKey& key) {
    if (key.path() != path) return false;
    const auto type = type_of(key);
    return type == "a string" || type == "a list of strings";
  });
}

// Returns whether an assigned value is read as TOML. A shell removes quotes: for a key of strings
// 0x10 and 2024-01-01 are text.
bool is_toml_value(std::string_view key, std::string_view text) {
  try {
    const auto table = toml::parse(fmt::format("v = {}", text));
    const auto& value = *table.get("v");
    return table.size() == 1 && !(value.is_value() && !value.is_string() && takes_text(key));
  } catch (const toml::parse_error&) {
    return false;
  }
}

// Returns "a.b=VALUE" as a table in a table.
toml::table parse_assignment(const Assignment& given) {
  const std::string_view assignment = given.text;
  const size_t equals = assignment.find('=');
  const auto key = assignment.substr(0, equals);
  const bool is_key = !key.empty() && std::ranges::all_of(key, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  });
  if (equals == std::string_view::npos || !is_key) {
    fail("job", "--set is KEY=VALUE, but got \"{}\"", assignment);
  }
  std::string value(assignment.substr(equals + 1));
  if (!is_toml_value(key, value)) value = toml_of(&value);
  return parse_toml(fmt::format("{} = {}", key, value), given.place);
}

// Moves the keys of `from` into `into`, where they replace existing ones.
void merge(toml::table& into, toml::table&& from) {
  for (auto&& [key, node] : from) {
    auto* inner = into.get_as<toml::table>(key);
    if (inner && node.is_table()) {
      merge(*inner, std::move(*node.as_table()));
    } else {
      node.visit([&, &key = key](auto& n) { into.insert_or_assign(key, std::move(n)); });
    }
  }
}

}  // namespace

namespace {

// Returns the key of a list of data files that is empty; "": there is none.
std::string empty_list_of_files(const toml::table& table) {
  for (const auto* kind : {"text", "tokens", "jsonl", "conversations", "tensors"}) {
    const auto path = fmt::format("data.{}", kind);
    const auto* list = table.at_path(path).as_array();
    if (list && list->empty()) return path;
  }
  return "";
}

Job read_job(std::string_view text, const std::string& file,
             std::span<const Assignment> overrides) {
  auto table = parse_toml(text, file);
  // An override may empty a list of the file.
  const auto empty_list = empty_list_of_files(table);
  for (const auto& assignment : overrides) merge(table, parse_assignment(assignment));
  Job job;
  Reader reader(job, file, fs::path(file).parent_path());
  reader.root(table);
  const auto& d = job.data;
  const bool files = !d.token_sources().empty() || !d.tensors.empty();
  if (table.at_path("data.synthetic") && !d.synthetic && !files) {
    fail("job", "{}data is one of {}, but got none", reader.place("data.synthetic"), kSources);
  }
  if (job.name.empty()) job.name = fs::path(file).stem().string();
  // Weights that are given are expected to be complete.
  const bool given = !job.train.weights.empty() || job.model.kind == "hf";
  if (given && !table.at_path("train.initialise")) job.train.initialise = false;
  const auto folder = job.model.values.find("folder");
  if (job.model.kind == "hf" && folder != job.model.values.end() &&
      !table.at_path("data.tokenizer")) {
    std::error_code ignored;
    const auto own = fs::path(std::get<std::string>(folder->second)) / "tokenizer.json";
    if (fs::exists(own, ignored)) job.data.tokenizer = own.string();
  }
  const bool synthetic = job.data.synthetic;
  job::complete(job, [&](std::string_view key) { return reader.place(key); });
  if (!empty_list.empty() && !synthetic && job.data.synthetic) {
    fail(
        "job",
        "{}{} must list a file, but is empty: name files, or set data.synthetic = true for made-up "
        "data",
        reader.place(empty_list), empty_list);
  }
  return job;
}

}  // namespace

Job Job::parse(std::string_view text, const std::string& file,
               std::span<const std::string> overrides) {
  std::vector<Assignment> assignments;
  for (const auto& one : overrides) assignments.push_back({one});
  return read_job(text, file, assignments);
}

Job Job::load(const std::string& path, std::span<const std::string> overrides) {
  return parse(read_file(path, "job"), path, overrides);
}

Job load_with(const std::string& path, std::span<const Assignment> overrides) {
  return read_job(read_file(path, "job"), path, overrides);
}

std::string to_json(const Dialect& dialect) {
  std::ostringstream text;
  const auto table = parse_toml(dialect.text, dialect.name);
  text << toml::json_formatter(*table[dialect.name].as_table());
  return text.str();
}

void Job::set(std::string_view assignment) {
  Job changed = *this;
  Reader(changed, "", "").root(parse_assignment({std::string(assignment)}));
  *this = std::move(changed);
}

}  // namespace perigee::job
