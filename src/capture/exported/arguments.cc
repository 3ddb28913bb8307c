#include "capture/exported/arguments.h"

#include <ATen/core/List.h>
#include <c10/util/complex.h>

#include <limits>
#include <optional>
#include <set>

#include "base/fail.h"
#include "capture/exported/types.h"

namespace perigee::exported {
namespace {

using c10::IValue;
using nlohmann::json;

double number(const json& value) {
  if (value == "Infinity") return std::numeric_limits<double>::infinity();
  if (value == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (value == "NaN") return std::numeric_limits<double>::quiet_NaN();
  return value.get<double>();
}

class ArgumentReader {
 public:
  ArgumentReader(const Names& names, const std::string& user) : names_(names), user_(user) {}

  Argument read(const json& argument) const {
    if (!argument.is_object() || argument.size() != 1) {
      fail("capture", "an exported model's argument is of one kind, but one of {} is not", user_);
    }
    const auto& kind = argument.begin().key();
    const auto& value = argument.begin().value();
    if (auto item = constant(kind, value)) return {.items = {std::move(*item)}};
    if (kind == "as_tensor") return {.items = {named(value.at("name"))}};
    if (kind == "as_optional_tensor") return {.items = {optional(value)}};
    if (kind.starts_with("as_sym_") && !kind.ends_with("s")) return {.items = {symbolic(value)}};
    Argument list{.list = true};
    for (const auto& element : elements(kind, value)) list.items.push_back(item(kind, element));
    return list;
  }

 private:
  const Item& named(const std::string& name) const {
    const auto found = names_.find(name);
    if (found != names_.end()) return found->second;
    fail("capture", "an exported model's nodes use earlier values, but {} uses \"{}\"", user_,
         name);
  }

  static std::optional<Item> constant(const std::string& kind, const json& value) {
    if (kind == "as_none") return IValue();
    if (kind == "as_int") return IValue(integer(value));
    if (kind == "as_float") return IValue(number(value));
    if (kind == "as_bool") return IValue(value.get<bool>());
    if (kind == "as_string") return IValue(value.get<std::string>());
    if (kind == "as_scalar_type") return IValue(element_type(integer(value)));
    if (kind == "as_layout") return IValue(layout(integer(value)));
    if (kind == "as_memory_format") return IValue(memory_format(integer(value)));
    if (kind == "as_device") return IValue(c10::Device(at::kCPU));
    if (kind == "as_complex") {
      return IValue(c10::complex<double>(number(value.at("real")), number(value.at("imag"))));
    }
    return std::nullopt;
  }

  Item optional(const json& value) const {
    if (value.contains("as_tensor")) return named(value.at("as_tensor").at("name"));
    return IValue();
  }

  Item symbolic(const json& value) const {
    if (value.contains("as_name")) return named(value.at("as_name"));
    if (value.contains("as_int")) return IValue(integer(value.at("as_int")));
    if (value.contains("as_float")) return IValue(number(value.at("as_float")));
    return IValue(value.at("as_bool").get<bool>());
  }

  const json& elements(const std::string& kind, const json& value) const {
    static const std::set<std::string> kinds = {
        "as_ints",     "as_floats",    "as_bools",     "as_tensors", "as_optional_tensors",
        "as_sym_ints", "as_sym_bools", "as_sym_floats"};
    if (kinds.contains(kind) && value.is_array()) return value;
    fail("capture",
         "an exported model's ops take tensors, numbers and lists of them, but {} takes an "
         "argument \"{}\"",
         user_, kind);
  }

  Item item(const std::string& kind, const json& element) const {
    if (kind == "as_ints") return IValue(integer(element));
    if (kind == "as_floats") return IValue(number(element));
    if (kind == "as_bools") return IValue(element.get<bool>());
    if (kind == "as_tensors") return named(element.at("name"));
    return kind == "as_optional_tensors" ? optional(element) : symbolic(element);
  }

  const Names& names_;
  const std::string& user_;
};

}  // namespace

Argument read_argument(const json& argument, const Names& names, const std::string& user) {
  return ArgumentReader(names, user).read(argument);
}

std::vector<std::string> output_names(const json& output) {
  const auto& kind = output.begin().key();
  const auto& value = output.begin().value();
  if (kind == "as_none") return {""};
  if (kind == "as_tensor") return {value.at("name")};
  if (kind == "as_tensors") {
    std::vector<std::string> names;
    for (const auto& tensor : value) names.push_back(tensor.at("name"));
    return names;
  }
  if (kind == "as_optional_tensor") {
    return {value.contains("as_tensor") ? value.at("as_tensor").at("name").get<std::string>() : ""};
  }
  if (kind.starts_with("as_sym_") && value.contains("as_name")) return {value.at("as_name")};
  fail("capture", "an exported model's nodes make tensors and sizes, but one makes \"{}\"", kind);
}

}  // namespace perigee::exported
