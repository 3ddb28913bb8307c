// The text of a document from the fields of a JSON line.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace perigee::text {

// "{title}\n{body}": `{name}` is the field of that name; "{{" and "}}" are braces.
class LineTemplate {
 public:
  // Throws Error where a brace has no partner, a name is empty, or there is no field.
  explicit LineTemplate(std::string_view text);

  // Returns the text. Strings are taken as they are, numbers, true and false as JSON writes them.
  // Throws Error where a field is missing, or is a list, an object or null.
  std::string render(const nlohmann::ordered_json& line) const;

 private:
  struct Part {
    std::string text;
    bool is_field = false;
  };
  std::vector<Part> parts_;
};

}  // namespace perigee::text
