#include "methods/field.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/fail.h"
#include "base/first_error.h"

namespace perigee::methods {
namespace {

struct TypeNames {
  std::string_view name, phrase;
};

// By FieldType.
constexpr std::array<TypeNames, 11> kTypes = {{
    {"boolean", "true or false"},
    {"integer", "an integer"},
    {"number", "a number"},
    {"string", "a string"},
    {"list", "a list"},
    {"list of integers", "a list of integers"},
    {"list of numbers", "a list of numbers"},
    {"list of strings", "a list of strings"},
    {"string or list", "a string or a list of strings"},
    {"table", "a table"},
    {"any", "any value"},
}};

const TypeNames& names_of(FieldType type) { return kTypes[static_cast<size_t>(type)]; }

// An empty Lua table is an object.
bool is_list(const Json& value) { return value.is_array() || (value.is_object() && value.empty()); }

template <class Test>
bool is_list_of(const Json& value, Test test) {
  return is_list(value) && std::all_of(value.begin(), value.end(), test);
}

bool has_type(const Json& value, FieldType type) {
  const auto is_string = [](const Json& item) { return item.is_string(); };
  switch (type) {
    case FieldType::boolean:
      return value.is_boolean();
    case FieldType::integer:
      return value.is_number_integer();
    case FieldType::number:
      return value.is_number();
    case FieldType::string:
      return value.is_string();
    case FieldType::list:
      return is_list(value);
    case FieldType::integers:
      return is_list_of(value, [](const Json& item) { return item.is_number_integer(); });
    case FieldType::numbers:
      return is_list_of(value, [](const Json& item) { return item.is_number(); });
    case FieldType::strings:
      return is_list_of(value, is_string);
    case FieldType::names:
      return value.is_string() || is_list_of(value, is_string);
    case FieldType::table:
      return value.is_object() || value.is_array();
    case FieldType::any:
      return true;
  }
  return false;
}

bool is_finite_limit(double limit) { return limit > -kNoLimit && limit < kNoLimit; }

// "at least 1", "above 0 and below 1e9", "from 1 to 64", or "".
std::string range_of(const ConfigField& field) {
  if (is_finite_limit(field.at_least) && is_finite_limit(field.at_most)) {
    return fmt::format("from {:.15g} to {:.15g}", field.at_least, field.at_most);
  }
  std::string text;
  const auto add = [&](const char* relation, double limit) {
    if (!is_finite_limit(limit)) return;
    text += fmt::format("{}{} {:.15g}", text.empty() ? "" : " and ", relation, limit);
  };
  add("at least", field.at_least);
  add("above", field.above);
  add("at most", field.at_most);
  add("below", field.below);
  return text;
}

void check_range(const ConfigField& field, const Json& value, std::string_view method) {
  const auto number = value.get<double>();
  const bool within = number >= field.at_least && number <= field.at_most &&
                      (number > field.above || !is_finite_limit(field.above)) &&
                      (number < field.below || !is_finite_limit(field.below));
  if (!within) fail(method, "{} must be {}, but got {}", field.name, range_of(field), value.dump());
}

void check_allowed(const ConfigField& field, const Json& value, std::string_view method) {
  const bool lists = !value.is_string();
  for (const auto& text : strings_of(value)) {
    if (std::find(field.allowed.begin(), field.allowed.end(), text) != field.allowed.end()) {
      continue;
    }
    fail(method, "{} must {} of {}, but got \"{}\"{}", field.name, lists ? "list any" : "be one",
         fmt::join(field.allowed, ", "), text, did_you_mean(text, field.allowed));
  }
}

}  // namespace

std::string_view name_of(FieldType type) { return names_of(type).name; }

void check_value(const ConfigField& field, const Json& value, std::string_view method) {
  if (!has_type(value, field.type)) {
    fail("strategy", "{}.{} must be {}, but got {}", method, field.name,
         names_of(field.type).phrase, value.dump());
  }
  if (value.is_number()) check_range(field, value, method);
  if (!field.allowed.empty()) check_allowed(field, value, method);
}

void check_fields(const std::vector<ConfigField>& fields, const Json& given,
                  std::string_view method) {
  std::vector<std::string> names;
  for (const auto& field : fields) names.push_back(field.name);
  FirstError wrong;
  for (const auto& [key, value] : given.items()) {
    wrong.check([&, &key = key, &value = value] {
      const auto field = std::find(names.begin(), names.end(), key) - names.begin();
      if (field == std::ssize(names)) {
        fail("strategy", "{} has no field \"{}\"{}", method, key, did_you_mean(key, names));
      }
      check_value(fields[field], value, method);
    });
  }
  wrong.raise("field", method);
  for (const auto& field : fields) {
    if (!field.required || given.contains(field.name)) continue;
    fail("strategy", "{} needs the field {}: {}", method, field.name, field.doc);
  }
}

std::vector<std::string> strings_of(const Json& value) {
  if (value.is_string()) return {value.get<std::string>()};
  std::vector<std::string> list;
  for (const auto& item : value) list.push_back(item.get<std::string>());
  return list;
}

std::string limits_of(const ConfigField& field) {
  if (field.allowed.empty()) return range_of(field);
  return fmt::format("`{}`", fmt::join(field.allowed, "`, `"));
}

std::string describe(const ConfigField& field) {
  auto text = fmt::format("{} ({}", field.name, name_of(field.type));
  if (field.required) text += ", required";
  if (const auto limits = limits_of(field); !limits.empty()) text += ", " + limits;
  if (!field.default_text.empty()) text += ", default " + field.default_text;
  text += ")";
  if (!field.doc.empty()) text += ": " + field.doc;
  if (!field.no_effect.empty()) {
    text += fmt::format("{}no effect: {}", field.doc.empty() ? ": " : "; ", field.no_effect);
  }
  return text;
}

}  // namespace perigee::methods
