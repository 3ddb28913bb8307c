#include "train/serve/openai_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "base/fail.h"
#include "base/text/depth.h"

namespace perigee::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostChoices = 128;      // OpenAI's limit of n
constexpr size_t kMostStops = 16;          // texts; OpenAI: 4
constexpr int64_t kCompletionTokens = 16;  // OpenAI's default of max_tokens

// Options that do not change the text.
const std::set<std::string> kIgnored = {"user",
                                        "metadata",
                                        "store",
                                        "service_tier",
                                        "safety_identifier",
                                        "prompt_cache_key",
                                        "parallel_tool_calls"};

// Options of which only these values are supported, besides null.
const std::vector<std::pair<std::string, std::vector<Json>>>& neutral_values() {
  static const std::vector<std::pair<std::string, std::vector<Json>>> values = {
      {"presence_penalty", {0}},
      {"frequency_penalty", {0}},
      {"logit_bias", {Json::object()}},
      {"logprobs", {false}},
      {"top_logprobs", {}},
      {"suffix", {""}},
      {"response_format", {Json({{"type", "text"}})}},
      {"modalities", {Json::array({"text"})}},
  };
  return values;
}

[[noreturn]] void refuse(const std::string& parameter, const std::string& message) {
  throw ApiError{.message = message, .parameter = parameter};
}

// The members of a body, which are read once each.
class Body {
 public:
  explicit Body(std::string_view text) {
    try {
      check_json_depth(text, "serve", "the body");
      json_ = Json::parse(text);
    } catch (const Json::exception& error) {
      throw ApiError{.message = fmt::format("the body must be JSON, but is not: {}", error.what())};
    } catch (const Error& error) {
      throw ApiError{.message = error.what()};
    }
    if (!json_.is_object()) throw ApiError{.message = "the body must be a JSON object"};
  }

  // Returns the value, or null.
  Json take(const std::string& name) {
    const auto found = json_.find(name);
    if (found == json_.end()) return nullptr;
    auto value = std::move(*found);
    json_.erase(name);
    return value;
  }

  bool boolean(const std::string& name, bool otherwise = false) {
    const auto value = take(name);
    if (value.is_null()) return otherwise;
    if (!value.is_boolean()) refuse(name, fmt::format("{} must be true or false", name));
    return value;
  }

  double number(const std::string& name, double otherwise) {
    const auto value = take(name);
    if (value.is_null()) return otherwise;
    if (!value.is_number()) refuse(name, fmt::format("{} must be a number", name));
    return value;
  }

  int64_t integer(const std::string& name, int64_t least, int64_t most, int64_t otherwise) {
    const auto value = take(name);
    if (value.is_null()) return otherwise;
    if (!value.is_number_integer() || value < least || value > most) {
      refuse(name, fmt::format("{} must be an integer from {} to {}, but got {}", name, least, most,
                               value.dump(-1, ' ', false, Json::error_handler_t::replace)));
    }
    return value;
  }

  // Returns a text, or a list of texts, as a list.
  std::vector<std::string> texts(const std::string& name, const Json& value) const {
    if (value.is_null()) return {};
    if (value.is_string()) return {value.get<std::string>()};
    std::vector<std::string> texts;
    for (const auto& text : value.is_array() ? value : Json::array({nullptr})) {
      if (!text.is_string())
        refuse(name, fmt::format("{} must be a text or a list of texts", name));
      texts.push_back(text);
    }
    return texts;
  }

  // Throws for the members that were not taken.
  void finish() {
    for (const auto& name : kIgnored) json_.erase(name);
    for (const auto& [name, allowed] : neutral_values()) {
      const auto value = take(name);
      if (!value.is_null() && std::ranges::find(allowed, value) == allowed.end()) {
        refuse(name, fmt::format("{} is not supported: leave it out", name));
      }
    }
    if (json_.empty()) return;
    const std::string name = json_.begin().key();
    refuse(name, fmt::format("the option \"{}\" is unknown", name));
  }

 private:
  Json json_;
};

// Returns the prompts of a request for completions, and their texts where they are echoed.
std::vector<std::vector<int64_t>> read_prompts(const TextService& service, const Json& prompt) {
  const auto is_tokens = [](const Json& value) {
    return value.is_array() && !value.empty() &&
           std::ranges::all_of(value, [](const Json& id) { return id.is_number_integer(); });
  };
  const auto one = [&](const Json& value) -> std::vector<int64_t> {
    if (value.is_string()) {
      // Without a token there are no logits.
      const auto text = value.get<std::string>();
      return service.encode(text.empty() ? "\n" : text);
    }
    if (!is_tokens(value)) {
      refuse(
          "prompt",
          "prompt must be a text, a list of texts, a list of token ids, or a list of such lists");
    }
    return value.get<std::vector<int64_t>>();
  };
  if (!prompt.is_array() || is_tokens(prompt)) return {one(prompt)};
  if (prompt.empty()) refuse("prompt", "prompt must not be empty");
  std::vector<std::vector<int64_t>> prompts;
  for (const auto& value : prompt) prompts.push_back(one(value));
  return prompts;
}

// Returns messages whose contents are texts, as chat templates take them.
// The API has the arguments of calls as JSON in a text, and templates read them as objects.
void read_calls(Json& calls) {
  for (auto& call : calls) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    auto& function = call["function"];
    if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
    const auto text = function["arguments"].get<std::string>();
    try {
      check_json_depth(text, "serve", "the arguments of a call");
    } catch (const Error& error) {
      refuse("messages", error.what());
    }
    auto arguments = Json::parse(text, nullptr, false);
    if (arguments.is_object()) function["arguments"] = std::move(arguments);
  }
}

Json read_messages(Json messages) {
  if (!messages.is_array() || messages.empty()) {
    refuse("messages", "messages must be a list of at least one message");
  }
  for (auto& message : messages) {
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      refuse("messages", "a message must be an object with a text \"role\"");
    }
    if (!message.contains("content")) message["content"] = nullptr;
    auto& content = message["content"];
    const bool calls = message.contains("tool_calls") && message["tool_calls"].is_array();
    if (calls) read_calls(message["tool_calls"]);
    if (content.is_null() && !calls) content = "";
    if (content.is_string() || content.is_null()) continue;
    std::string text;
    for (const auto& part : content.is_array() ? content : Json::array({nullptr})) {
      if (!part.is_object() || part.value("type", Json()) != "text" || !part.contains("text") ||
          !part["text"].is_string()) {
        refuse("messages",
               "a message's content must be a text or a list of parts {\"type\": \"text\", "
               "\"text\": ...}");
      }
      text += part["text"].get<std::string>();
    }
    content = text;
  }
  return messages;
}

std::vector<int64_t> read_conversation(const TextService& service, Body& body) {
  Json conversation = {{"messages", read_messages(body.take("messages"))}};
  auto tools = body.take("tools");
  const auto choice = body.take("tool_choice");
  if (!choice.is_null() && choice != "auto" && choice != "none") {
    refuse("tool_choice",
           "tool_choice must be \"auto\" or \"none\": the model's text is not constrained");
  }
  if (!tools.is_null() && choice != "none") conversation["tools"] = std::move(tools);
  return service.encode_chat(conversation);
}

// Returns the most tokens of an answer.
int64_t read_tokens(Body& body, bool chat, const OpenAiOptions& options, int64_t room) {
  const auto most = std::numeric_limits<int32_t>::max();
  const auto given = body.integer("max_tokens", 0, most, -1);
  const auto completion = chat ? body.integer("max_completion_tokens", 0, most, -1) : -1;
  const auto asked = completion >= 0 ? completion : given;
  if (asked < 0)
    return std::clamp<int64_t>(chat ? options.tokens : kCompletionTokens, 0,
                               std::max<int64_t>(room, 1));
  return asked;
}

}  // namespace

AskedTexts read_openai_request(const TextService& service, const OpenAiOptions& options, bool chat,
                               std::string_view text, uint64_t seed) {
  Body body(text);
  const auto model = body.take("model");
  if (!model.is_null() && model != options.model) {
    throw ApiError{
        404,
        fmt::format("the model \"{}\" does not exist: this server has \"{}\"",
                    model.is_string() ? model.get<std::string>() : model.dump(), options.model),
        "model", "model_not_found"};
  }
  AskedTexts asked;
  asked.chat = chat;
  asked.streams = body.boolean("stream");
  if (auto stream = body.take("stream_options"); !stream.is_null()) {
    if (!asked.streams) refuse("stream_options", "stream_options needs \"stream\": true");
    if (!stream.is_object()) refuse("stream_options", "stream_options must be an object");
    const auto usage = stream.value("include_usage", Json(false));
    if (!usage.is_boolean()) refuse("stream_options", "include_usage must be true or false");
    asked.usage = usage;
  }
  TextRequest common;
  common.draw = options.draw;
  common.draw.temperature = body.number("temperature", common.draw.temperature);
  common.draw.top_p = body.number("top_p", common.draw.top_p);
  common.draw.top_k = body.integer("top_k", 0, std::numeric_limits<int32_t>::max(),
                                   common.draw.top_k);
  common.draw.repetition_penalty = body.number("repetition_penalty",
                                               common.draw.repetition_penalty);
  common.draw.seed = static_cast<uint64_t>(body.integer("seed", std::numeric_limits<int64_t>::min(),
                                                        std::numeric_limits<int64_t>::max(),
                                                        static_cast<int64_t>(seed)));
  if (const auto wrong = wrong_option(common.draw)) refuse(wrong->name, wrong->message);
  common.stops = body.texts("stop", body.take("stop"));
  if (common.stops.size() > kMostStops) {
    refuse("stop", fmt::format("stop may have at most {} texts, but has {}", kMostStops,
                               common.stops.size()));
  }
  for (const auto& stop : common.stops) {
    if (stop.empty()) refuse("stop", "a text of stop must not be empty");
  }
  common.stops.insert(common.stops.end(), options.stops.begin(), options.stops.end());
  if (!body.boolean("ignore_eos")) {
    common.ends = chat ? service.answer_ends() : service.text_ends();
    if (chat) std::ranges::copy(service.answer_stops(), std::back_inserter(common.stops));
  }
  if (body.boolean("skip_special_tokens", true)) {
    common.hidden = service.special_tokens();
    // One that is a stop string ends the text.
    std::erase_if(common.hidden, [&](int64_t id) {
      return std::ranges::find(common.stops, service.decode({id})) != common.stops.end();
    });
  }
  const auto choices = body.integer("n", 1, kMostChoices, 1);
  if (body.integer("best_of", 1, kMostChoices, choices) != choices) {
    refuse("best_of", "best_of must equal n: texts are not compared");
  }
  const auto* where = chat ? "messages" : "prompt";
  const bool echo = !chat && body.boolean("echo");
  try {
    const auto prompts = chat ? std::vector<std::vector<int64_t>>{read_conversation(service, body)}
                              : read_prompts(service, body.take("prompt"));
    int64_t longest = 0;
    for (const auto& prompt : prompts) {
      if (prompt.empty()) refuse(where, "the prompt must have at least one token");
      for (const auto id : prompt) {
        if (id >= 0 && id < service.vocab()) continue;
        refuse(where,
               fmt::format("a token id must be 0 to {}, but got {}", service.vocab() - 1, id));
      }
      longest = std::max(longest, std::ssize(prompt));
      asked.prompt_tokens += std::ssize(prompt);
    }
    common.most = read_tokens(body, chat, options, service.context() - longest);
    body.finish();
    if (longest + common.most > service.context()) {
      throw ApiError{
          400,
          fmt::format("the model reads at most {} tokens, but the prompt has {} and {} more are "
                      "asked for: shorten it, or lower max_tokens",
                      service.context(), longest, common.most),
          where, "context_length_exceeded"};
    }
    if (std::ssize(prompts) * choices > service.capacity()) {
      throw ApiError{400,
                     fmt::format("a request may ask for at most {} texts, but asks for {}",
                                 service.capacity(), std::ssize(prompts) * choices),
                     "n"};
    }
    for (const auto& prompt : prompts) {
      const auto before = echo ? service.decode(prompt) : "";
      for (int64_t k = 0; k < choices; ++k) {
        auto request = common;
        request.prompt = prompt;
        request.draw.seed += asked.requests.size();
        asked.requests.push_back(std::move(request));
        asked.before.push_back(before);
      }
    }
  } catch (const Error& error) {
    throw ApiError{.message = error.what(), .parameter = where};
  }
  return asked;
}

}  // namespace perigee::train
