#include "methods/texts.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/fail.h"
#include "methods/field_table.h"

namespace perigee::methods {

std::vector<std::string> texts(const Json& value, std::string_view method, std::string_view what) {
  std::vector<std::string> list;
  const auto add = [&](const Json& item) {
    if (!item.is_string()) fail(method, "{} are names, but got {}", what, item.dump());
    list.push_back(item.get<std::string>());
  };
  if (value.is_string()) {
    add(value);
  } else {
    for (const auto& item : value) add(item);
  }
  return list;
}

mesh::AxisSet FieldTraits<mesh::AxisSet>::read(const Json& value, const ConfigField& field,
                                               std::string_view method) {
  try {
    std::vector<std::string> axes;
    for (const auto& text : strings_of(value)) {
      for (const auto& axis : mesh::AxisSet::parse(text)) axes.push_back(axis);
    }
    return mesh::AxisSet(std::move(axes));
  } catch (const Error&) {
    fail(method, "{} must name axes such as \"data,context\" or a list, each once, but got {}",
         field.name, value.dump());
  }
}

int64_t memory_of(const Json& value, const plan::Plan& plan, const PlanRequest& request,
                  std::string_view method) {
  if (value == "device") {
    if (!request.device_bytes) return 0;
    return static_cast<int64_t>(request.device_bytes(mesh_of_ranks(plan, request).size()));
  }
  if (value.is_number_integer() && value.get<int64_t>() > 0) return value.get<int64_t>();
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    size_t used = 0;
    double number = 0;
    try {
      number = std::stod(text, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    const auto unit = text.substr(std::min(text.find_first_not_of(' ', used), text.size()));
    constexpr std::pair<std::string_view, double> kUnits[] = {
        {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},    {"TB", 1e12},
        {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
    for (const auto& [name, factor] : kUnits) {
      const double bytes = number * factor;
      if (used > 0 && unit == name && bytes >= 1 && bytes < 1e18) {
        return static_cast<int64_t>(bytes);
      }
    }
  }
  fail(method,
       "memory is a number of bytes, a text such as \"40GB\" or \"512MiB\", or \"device\", but got "
       "{}",
       value.dump());
}

}  // namespace perigee::methods
