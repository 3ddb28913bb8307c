// One field of a method's config: the row that checks, messages, editor types and pages follow.
#pragma once

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace perigee::methods {

using Json = nlohmann::json;

enum class FieldType : unsigned char {
  boolean,
  integer,
  number,
  string,
  list,      // of anything
  integers,  // a list of them
  numbers,   // a list of them
  strings,   // a list of them
  names,     // a string, or a list of strings
  table,     // or a list
  any,
};

// Returns "integer", "list of strings", "string or list", ...
std::string_view name_of(FieldType type);

inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

struct ConfigField {
  std::string name;
  FieldType type = FieldType::any;
  // The meaning, without the default and the limits.
  std::string doc;
  bool required = false;
  // The default as pages show it: a constant, or in words where other values decide it.
  std::string default_text = {};

  // Limits of a number.
  double at_least = -kNoLimit;
  double above = -kNoLimit;
  double at_most = kNoLimit;
  double below = kNoLimit;
  // Values of a string, or of each item of strings and names; empty: any.
  std::vector<std::string> allowed = {};
  // Why the field changes nothing; "": it has an effect.
  std::string no_effect = {};
};

// Throws Error where the value has another type than the field, is out of its limits, or is not
// among the allowed values (with the nearest of them).
void check_value(const ConfigField& field, const Json& value, std::string_view method);

// Throws Error for a field of `given` (an object) that is not among `fields` (with the nearest
// name), a value that its field does not allow (check_value), and a required field that is missing.
void check_fields(const std::vector<ConfigField>& fields, const Json& given,
                  std::string_view method);

// Returns the strings of a value of the types strings and names.
std::vector<std::string> strings_of(const Json& value);

// Returns "at least 1", "above 0 and below 1e9", "`mean`, `sum`", or "".
std::string limits_of(const ConfigField& field);

// Returns the field as one phrase: "slices (integer, at least 1, default 1): pieces of a product".
std::string describe(const ConfigField& field);

}  // namespace perigee::methods
