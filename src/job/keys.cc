#include "job/keys.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/fail.h"

namespace perigee::job {
namespace {

bool contains(const std::vector<std::string>& list, std::string_view item) {
  return std::ranges::find(list, item) != list.end();
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04x}", c);
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + '"';
}

// The shortest digits that read back as the same number.
std::string toml_number(double number) {
  auto text = fmt::format("{}", number);
  if (text.find_first_of(".ein") == std::string::npos) text += ".0";
  return text;
}

template <class T, class F>
std::string toml_list(const std::vector<T>& items, F text) {
  std::vector<std::string> parts;
  for (const auto& item : items) parts.push_back(text(item));
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

void check_number(const JobKey& key, double number, const std::string& at) {
  const bool good = std::isfinite(number) && number >= key.least && number > key.more_than &&
                    number <= key.most && number < key.less_than;
  if (good) return;
  const auto limits = std::isfinite(number) ? limits_of(key) : "finite";
  fail("job", "{}{} is {}, but got {}", at, key.path(), limits, fmt::format("{}", number));
}

void check_string(const JobKey& key, const std::string& text, const std::string& at) {
  if (key.allowed.empty() || contains(key.allowed, text)) return;
  fail("job", "{}{} is {}, but got \"{}\"{}", at, key.path(), limits_of(key), text,
       did_you_mean(text, key.allowed));
}

}  // namespace

const std::vector<std::string>& sampler_names() {
  static const std::vector<std::string> names = {"shuffle", "sequential", "random"};
  return names;
}

bool is_list(std::string_view table) {
  return table == "optimizer.group" || table == "data.sources";
}

const std::vector<std::string>& tables() {
  static const std::vector<std::string> list = [] {
    std::vector<std::string> out;
    for (const auto& key : keys()) {
      if (!contains(out, key.table)) out.push_back(key.table);
    }
    return out;
  }();
  return list;
}

const JobKey* find_key(std::string_view table, std::string_view name, std::string_view kind) {
  for (const auto& key : keys()) {
    if (key.table != table || key.name != name) continue;
    if (key.kinds.empty() || contains(key.kinds, kind)) return &key;
  }
  return nullptr;
}

Ref ref(const JobKey& key, Job& job, ListEntry& entry) {
  if (key.field) return key.field(job, entry);
  auto& values = key.kinds.empty() ? job.optimizer.options : job.model.values;
  auto& value = values.try_emplace(key.name, key.fallback).first->second;
  // A job built in code may hold a value of another type.
  if (value.index() != key.fallback.index()) {
    fail("job", "{} is {}, but got another type", key.path(), type_of(key));
  }
  return std::visit([](auto& v) -> Ref { return &v; }, value);
}

bool is_initial(const JobKey& key, const Job& job, const ListEntry& entry) {
  static const Job initial_job;
  static const ListEntry initial_entry;
  const auto text = [&](const Job& j, const ListEntry& e) {
    return toml_of(key.field(const_cast<Job&>(j), const_cast<ListEntry&>(e)));
  };
  if (key.field) return text(job, entry) == text(initial_job, initial_entry);
  const auto& values = key.kinds.empty() ? job.optimizer.options : job.model.values;
  const auto found = values.find(key.name);
  return found == values.end() || found->second == key.fallback;
}

bool names_no_file(const JobKey& key, std::string_view text) {
  return text.empty() || (key.name == "tokenizer" && text == "bytes") ||
         (key.name == "strategy" && !text.ends_with(".lua")) ||
         (key.name == "sampler" && !text.ends_with(".so"));
}

std::string type_of(const JobKey& key) {
  if (!key.field) {
    constexpr std::string_view names[] = {"true or false",     "an integer",
                                          "a number",          "a string",
                                          "a list of numbers", "a list of strings"};
    return std::string(names[key.fallback.index()]);
  }
  constexpr std::string_view names[] = {"true or false", "an integer",        "a number",
                                        "a string",      "a list of numbers", "a list of strings",
                                        "a number"};
  Job job;
  ListEntry entry;
  return std::string(names[key.field(job, entry).index()]);
}

std::string limits_of(const JobKey& key) {
  if (!key.allowed.empty()) return fmt::format("one of {}", fmt::join(key.allowed, ", "));
  std::vector<std::string> parts;
  if (key.least > -no_limit) parts.push_back(fmt::format("at least {}", key.least));
  if (key.more_than > -no_limit) parts.push_back(fmt::format("more than {}", key.more_than));
  if (key.most < no_limit) parts.push_back(fmt::format("at most {}", key.most));
  if (key.less_than < no_limit) parts.push_back(fmt::format("less than {}", key.less_than));
  return fmt::format("{}", fmt::join(parts, " and "));
}

void check(const JobKey& key, const Ref& value, const std::string& at) {
  if (auto* const* integer = std::get_if<int64_t*>(&value)) {
    // Integers of a short list are checked by their digits.
    if (!key.allowed.empty()) {
      const auto text = std::to_string(**integer);
      if (contains(key.allowed, text)) return;
      fail("job", "{}{} is {}, but got {}", at, key.path(), limits_of(key), text);
    }
    check_number(key, static_cast<double>(**integer), at);
  } else if (auto* const* number = std::get_if<double*>(&value)) {
    check_number(key, **number, at);
  } else if (auto* const* maybe = std::get_if<std::optional<double>*>(&value)) {
    if (**maybe) check_number(key, ***maybe, at);
  } else if (auto* const* numbers = std::get_if<std::vector<double>*>(&value)) {
    if (key.count > 0 && (*numbers)->size() != key.count) {
      fail("job", "{}{} has {} numbers, but got {}", at, key.path(), key.count, (*numbers)->size());
    }
    for (double n : **numbers) check_number(key, n, at);
  } else if (auto* const* text = std::get_if<std::string*>(&value)) {
    check_string(key, **text, at);
  }
}

bool takes_booleans(const JobKey& key) { return contains(key.allowed, "true"); }

std::string toml_of(const Ref& value) {
  struct {
    std::string operator()(bool* b) { return *b ? "true" : "false"; }
    std::string operator()(int64_t* n) { return std::to_string(*n); }
    std::string operator()(double* n) { return toml_number(*n); }
    std::string operator()(std::string* s) { return toml_string(*s); }
    std::string operator()(std::vector<double>* v) { return toml_list(*v, toml_number); }
    std::string operator()(std::vector<std::string>* v) { return toml_list(*v, toml_string); }
    std::string operator()(std::optional<double>* n) { return *n ? toml_number(**n) : ""; }
  } text;
  return std::visit(text, value);
}

}  // namespace perigee::job
