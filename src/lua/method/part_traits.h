// How the types of a plan's parts are read from a table of fields (methods/field_table.h).
#pragma once

#include <fmt/format.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/fail.h"
#include "lua/method/plan_parts.h"
#include "methods/field_table.h"
#include "methods/precision/low_precision.h"

namespace perigee::methods {

template <>
struct FieldTraits<int> : ScalarTraits<int> {
  static constexpr auto type = FieldType::integer;
  static std::string text(int value, const ConfigField&) { return std::to_string(value); }
};

// By name: "bfloat16", "bf16".
template <>
struct FieldTraits<graph::DType> {
  static constexpr auto type = FieldType::string;
  static graph::DType read(const Json& value, const ConfigField&, std::string_view) {
    return dtype_named(value.get<std::string>());
  }
  static std::string text(graph::DType value, const ConfigField&) {
    return fmt::format("`{}`", graph::name_of(value));
  }
};

// A list of lists of names.
template <>
struct FieldTraits<std::vector<std::vector<std::string>>> {
  using Lists = std::vector<std::vector<std::string>>;
  static constexpr auto type = FieldType::list;
  static Lists read(const Json& value, const ConfigField& field, std::string_view method) {
    Lists lists;
    for (const auto& item : value) {
      const auto name = fmt::format("{}[{}]", field.name, lists.size() + 1);
      check_value({.name = name, .type = FieldType::strings}, item, method);
      lists.push_back(strings_of(item));
    }
    return lists;
  }
  static std::string text(const Lists&, const ConfigField&) { return "none"; }
};

// Lists of names by name.
template <>
struct FieldTraits<std::map<std::string, std::vector<std::string>>> {
  using Lists = std::map<std::string, std::vector<std::string>>;
  static constexpr auto type = FieldType::table;
  static Lists read(const Json& value, const ConfigField& field, std::string_view method) {
    Lists lists;
    if (value.is_array()) {
      fail(method, "{} must be a table of lists by name, but got {}", field.name, value.dump());
    }
    for (const auto& [name, item] : value.items()) {
      check_value({.name = field.name + "." + name, .type = FieldType::strings}, item, method);
      lists[name] = strings_of(item);
    }
    return lists;
  }
  static std::string text(const Lists&, const ConfigField&) { return "none"; }
};

template <>
struct FieldTraits<plan::LossScale> {
  static constexpr auto type = FieldType::table;
  static plan::LossScale read(const Json& value, const ConfigField& field, std::string_view,
                              const plan::LossScale& now) {
    const auto& table = lua::loss_scale_part();
    check_fields(table.fields(), value.is_array() ? Json::object() : value, field.name);
    return table.parse({.fields = value}, field.name, now);
  }
  static std::string text(const plan::LossScale&, const ConfigField&) { return "none"; }
};

}  // namespace perigee::methods
