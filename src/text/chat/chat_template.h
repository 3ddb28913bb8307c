// The chat template of a model, with the special tokens of its tokenizer.
#pragma once

#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "text/jinja/template.h"

namespace perigee::text {

class ChatTemplate {
 public:
  // Opens the template of a file, or where `file` is "" that of the folder of the tokenizer's file:
  // chat_template.jinja, else `chat_template` of tokenizer_config.json. Special tokens (bos_token,
  // eos_token, ...) are those of tokenizer_config.json, if it exists. Throws Error where there is no
  // template, or a file is damaged. `now`: the time of strftime_now.
  ChatTemplate(const std::string& file, const std::string& tokenizer, std::time_t now = 0);

  // Renders a conversation: an object with `messages`, whose other members ("tools", ...) are
  // variables of the template, too. `prompt`: the text ends where the model's answer begins
  // (add_generation_prompt). Throws Error.
  jinja::Rendered render(const nlohmann::ordered_json& conversation, bool prompt) const;

  // Returns the text of a special token ("eos_token"), or "".
  std::string special_token(const std::string& name) const;

  // Whether the template for this conversation marks answers by {% generation %}.
  bool marks_answers(const nlohmann::ordered_json& conversation) const;

 private:
  void read_config(const std::string& path, bool templates);
  const jinja::Template& chosen(const nlohmann::ordered_json& conversation) const;

  // By name: "default", and "tool_use" of some models, for conversations with tools.
  std::map<std::string, jinja::Template> templates_;
  std::time_t now_;
  nlohmann::ordered_json special_tokens_ = nlohmann::ordered_json::object();
};

}  // namespace perigee::text
