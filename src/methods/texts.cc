#include "methods/texts.h"

#include <algorithm>

#include "base/error.h"
#include "mesh/mesh.h"

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

std::vector<std::string> axes_of(const Config& config, std::string_view method, const char* field,
                                 std::vector<std::string> otherwise) {
  if (!config.fields.contains(field)) return otherwise;
  std::vector<std::string> axes;
  for (const auto& text : texts(config.fields[field], method, field)) {
    for (auto& axis : mesh::split_axes(text)) {
      if (std::find(axes.begin(), axes.end(), axis) != axes.end()) {
        fail(method, "{} names an axis once, but got {} twice", field, axis);
      }
      axes.push_back(std::move(axis));
    }
  }
  return axes;
}

}  // namespace perigee::methods
