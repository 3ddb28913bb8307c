#include "text/chat/chat_template.h"

#include <filesystem>

#include "base/fail.h"
#include "base/files/file.h"
#include "base/text/depth.h"

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace perigee::text {
namespace {

constexpr const char* kDefault = "default";
constexpr const char* kTools = "tool_use";

ordered_json read_object(const std::string& path) {
  const auto text = read_file(path, "template");
  check_json_depth(text, "template", path);
  auto json = ordered_json::parse(text, nullptr, false);
  if (!json.is_object()) fail("template", "{} must be a JSON object, but is not", path);
  return json;
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

}  // namespace

ChatTemplate::ChatTemplate(const std::string& file, const std::string& tokenizer, std::time_t now)
    : now_(now) {
  const auto folder = fs::path(tokenizer).parent_path();
  const auto own = (folder / "chat_template.jinja").string();
  const auto config = (folder / "tokenizer_config.json").string();
  const bool with_folder = tokenizer != "bytes";
  if (!file.empty()) {
    templates_.emplace(kDefault, jinja::Template(read_file(file, "template"), file));
  } else if (with_folder && exists(own)) {
    templates_.emplace(kDefault, jinja::Template(read_file(own, "template"), own));
  }
  if (with_folder && exists(config)) read_config(config, templates_.empty());
  if (templates_.contains(kDefault)) return;
  fail(
      "template",
      "a chat template must be given, or be in the tokenizer's folder as chat_template.jinja or in "
      "tokenizer_config.json, but {} has none",
      with_folder ? folder.empty() ? "." : folder.string() : "the tokenizer \"bytes\"");
}

void ChatTemplate::read_config(const std::string& path, bool templates) {
  const auto config = read_object(path);
  for (const auto& [key, value] : config.items()) {
    const auto& content = value.is_object() && value.contains("content") ? value["content"] : value;
    if (key.ends_with("_token") && content.is_string()) special_tokens_[key] = content;
  }
  const auto found = config.find("chat_template");
  if (!templates || found == config.end() || found->is_null()) return;
  const auto wrong = [&] {
    fail("template", "chat_template of {} must be a text, or a list of names with texts, but is {}",
         path, found->type_name());
  };
  const auto add = [&](const std::string& name, const std::string& source) {
    templates_.emplace(name, jinja::Template(source, path + ":" + name));
  };
  if (found->is_string()) {
    templates_.emplace(kDefault, jinja::Template(found->get<std::string>(), path));
    return;
  }
  if (!found->is_array()) wrong();
  for (const auto& each : *found) {
    const auto text = [&](const char* key) {
      return each.is_object() && each.contains(key) && each[key].is_string();
    };
    if (!text("name") || !text("template")) wrong();
    const auto name = each["name"].get<std::string>();
    if (name == kDefault || name == kTools) add(name, each["template"].get<std::string>());
  }
}

const jinja::Template& ChatTemplate::chosen(const ordered_json& conversation) const {
  const auto tools = conversation.find("tools");
  const bool has_tools = tools != conversation.end() && !tools->is_null() && !tools->empty();
  const auto special = templates_.find(kTools);
  return has_tools && special != templates_.end() ? special->second : templates_.at(kDefault);
}

jinja::Rendered ChatTemplate::render(const ordered_json& conversation, bool prompt) const {
  auto variables = special_tokens_;
  for (const auto* name : {"tools", "documents"}) variables[name] = nullptr;
  for (const auto& [key, value] : conversation.items()) variables[key] = value;
  variables["add_generation_prompt"] = prompt;
  return chosen(conversation).render({.variables = std::move(variables), .now = now_});
}

std::string ChatTemplate::special_token(const std::string& name) const {
  return special_tokens_.value(name, "");
}

bool ChatTemplate::marks_answers(const ordered_json& conversation) const {
  return chosen(conversation).marks_generation();
}

}  // namespace perigee::text
