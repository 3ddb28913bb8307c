// perigee.Job and its sections: the resolved job as a script reads it, from the table of keys.
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "job/keys.h"
#include "lua/api.h"

namespace perigee::lua {
namespace {

// "lr_schedule" -> "perigee.JobLrSchedule", "" -> "perigee.Job".
std::string class_of_section(std::string_view section) {
  std::string name = "perigee.Job";
  bool capital = true;
  for (const char c : section) {
    const bool separates = c == '.' || c == '_';
    if (!separates) name += capital ? static_cast<char>(std::toupper(c)) : c;
    capital = separates;
  }
  return name;
}

std::string field_type(const job::JobKey& key) {
  constexpr std::string_view types[] = {"boolean",  "integer",  "number", "string",
                                        "number[]", "string[]", "number"};
  job::Job job;
  job::ListEntry entry;
  return std::string(types[job::ref(key, job, entry).index()]);
}

// "At least 1." or "".
std::string limits_sentence(const job::JobKey& key) {
  auto text = job::limits_of(key);
  if (text.empty()) return "";
  text.front() = static_cast<char>(std::toupper(text.front()));
  return " " + text + ".";
}

std::string default_sentence(const job::JobKey& key) {
  return key.otherwise.empty() ? "" : fmt::format(" Default: {}.", key.otherwise);
}

// Appends a key to the fields of its section. Keys of that name, of different kinds of models,
// become one field.
void add_key(std::vector<Parameter>& fields, const job::JobKey& key) {
  const bool optional = !key.kinds.empty() || !key.otherwise.empty();
  auto doc = key.about + limits_sentence(key) + default_sentence(key);
  if (!key.kinds.empty()) doc = fmt::format("{}: {}", fmt::join(key.kinds, ", "), doc);
  auto type = field_type(key) + (optional ? "?" : "");
  const auto known = std::ranges::find(fields, key.name, &Parameter::name);
  if (known == fields.end()) {
    fields.push_back({key.name, std::move(type), std::move(doc)});
    return;
  }
  if (known->type != type) known->type = known->type.substr(0, known->type.size() - 1) + "|" + type;
  known->doc += " " + doc;
}

}  // namespace

std::vector<Module> job_classes() {
  std::vector<Module> classes;
  for (const auto& section : job::tables()) {
    Module module{.name = class_of_section(section),
                  .doc = section.empty()
                             ? "The resolved job, as strategy functions and request.job have it: "
                               "keys with their defaults filled in. A key that is not given, and "
                               "whose default is not a constant, may be absent. A dialect's table "
                               "has the dialect's name."
                         : job::is_list(section)
                             ? fmt::format("An entry of the job's `[[{}]]`.", section)
                             : fmt::format("The job's `[{}]`.", section),
                  .elsewhere = true,
                  .is_class = true};
    for (const auto& key : job::keys()) {
      if (key.table == section) add_key(module.fields, key);
    }
    if (section == "model") {
      module.fields.push_back(
          {"options", "table?", "`[model.options]`, for the model's script or plugin."});
    }
    classes.push_back(std::move(module));
  }
  // A section is a field of the one that holds it.
  for (const auto& section : job::tables()) {
    if (section.empty()) continue;
    const auto dot = section.rfind('.');
    const auto holder = class_of_section(dot == section.npos ? "" : section.substr(0, dot));
    const auto module = std::ranges::find(classes, holder, &Module::name);
    const bool list = job::is_list(section);
    module->fields.push_back(
        {section.substr(dot == section.npos ? 0 : dot + 1),
         class_of_section(section) + (list ? "[]?" : ""),
         list ? fmt::format("`[[{}]]`", section) : fmt::format("`[{}]`", section)});
  }
  classes.front().types =
      "\n---A strategy as a function: returns a list of methods, a table with methods, or a plan.\n"
      "---@alias perigee.StrategyFunction fun(job: perigee.Job, graph: perigee.Graph): table\n";
  return classes;
}

}  // namespace perigee::lua
