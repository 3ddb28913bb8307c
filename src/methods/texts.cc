#include "methods/texts.h"

#include "base/error.h"

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

}  // namespace perigee::methods
