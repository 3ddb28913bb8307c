#include "text/documents/line_template.h"

#include "base/fail.h"

namespace perigee::text {

LineTemplate::LineTemplate(std::string_view text) {
  const auto wrong = [&](const char* why) {
    fail("data",
         "a template of fields is \"{{title}} {{body}}\", with {{{{ and }}}} for braces, but "
         "\"{}\" {}",
         text, why);
  };
  std::string plain;
  bool any = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if ((c == '{' || c == '}') && at + 1 < text.size() && text[at + 1] == c) {
      plain += c;
      ++at;
    } else if (c == '{') {
      const auto end = text.find('}', at);
      const auto name = text.substr(at + 1, end == text.npos ? 0 : end - at - 1);
      if (end == text.npos) wrong("has a { without }");
      if (name.empty() || name.find('{') != name.npos) wrong("has a field without a name");
      if (!plain.empty()) parts_.push_back({std::move(plain), false});
      plain.clear();
      parts_.push_back({std::string(name), true});
      any = true;
      at = end;
    } else if (c == '}') {
      wrong("has a } without {");
    } else {
      plain += c;
    }
  }
  if (!plain.empty()) parts_.push_back({std::move(plain), false});
  if (!any) wrong("has no field");
}

std::string LineTemplate::render(const nlohmann::ordered_json& line) const {
  std::string text;
  for (const auto& part : parts_) {
    if (!part.is_field) {
      text += part.text;
      continue;
    }
    const auto field = line.is_object() ? line.find(part.text) : line.end();
    if (!line.is_object() || field == line.end()) {
      fail("data", "a line must have the field \"{}\" of data.template, but has none", part.text);
    }
    if (field->is_string()) {
      text += field->get_ref<const std::string&>();
    } else if (field->is_primitive() && !field->is_null()) {
      text += field->dump();
    } else {
      fail("data", "the field \"{}\" must be a string or a number, but is {}", part.text,
           field->is_null()    ? "null"
           : field->is_array() ? "a list"
                               : "an object");
    }
  }
  return text;
}

}  // namespace perigee::text
