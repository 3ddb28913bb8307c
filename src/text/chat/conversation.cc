#include "text/chat/conversation.h"

#include <algorithm>

#include "base/fail.h"

using nlohmann::ordered_json;

namespace perigee::text {
namespace {

// Returns the place in `text` where the content of a message ends, or npos where that is no text or
// is not rendered: a character that is added to it appears there.
size_t end_of_content(const ChatTemplate& chat, ordered_json conversation, size_t message,
                      const std::string& text) {
  auto& content = conversation["messages"][message]["content"];
  if (!content.is_string() && !content.is_null()) return text.npos;
  content = (content.is_string() ? content.get<std::string>() : "") + "\uE000";
  const auto changed = chat.render(conversation, false).text;
  const auto differs = std::ranges::mismatch(text, changed).in1;
  return changed == text ? text.npos : size_t(differs - text.begin());
}

// Returns the end of the last message of `part` within the text of the whole conversation, for
// templates that render a message otherwise when it is the last one, for example with its thoughts:
// `with` ends with the same text after the message's content. 0: it is not found.
size_t end_of_last(const ChatTemplate& chat, const ordered_json& conversation,
                   const ordered_json& part, const std::string& text, const std::string& with) {
  const auto message = part["messages"].size() - 1;
  const auto content = end_of_content(chat, conversation, message, text);
  const auto last = end_of_content(chat, part, message, with);
  if (content == text.npos || last == text.npos) return 0;
  const auto tail = std::string_view(with).substr(last);
  return std::string_view(text).substr(content).starts_with(tail) ? content + tail.size() : 0;
}

}  // namespace

void check_conversation(const ordered_json& line) {
  const auto wrong = [](std::string_view got) {
    fail("data",
         "a line must be {{\"messages\": [{{\"role\": ..., \"content\": ...}}, ...]}}, but {}",
         got);
  };
  if (!line.is_object()) wrong("is no object");
  if (!line.contains("messages") || !line["messages"].is_array()) wrong("has no list \"messages\"");
  if (line["messages"].empty()) wrong("\"messages\" is empty");
  for (const auto& message : line["messages"]) {
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      wrong("a message has no \"role\"");
    }
  }
}

std::vector<Span> answers_of(const ChatTemplate& chat, const ordered_json& conversation,
                             const jinja::Rendered& rendered) {
  std::vector<Span> answers;
  const bool marked = chat.marks_answers(conversation);
  if (marked) answers = rendered.generated;
  auto part = conversation;
  auto& messages = part["messages"];
  messages = ordered_json::array();
  for (const auto& message : conversation["messages"]) {
    const bool answer = !marked && message["role"] == "assistant";
    const auto before = answer ? chat.render(part, true).text : std::string();
    messages.push_back(message);
    if (!answer) continue;
    const auto with = chat.render(part, false).text;
    const bool appended = rendered.text.starts_with(with) && with.starts_with(before);
    const auto end = appended ? with.size()
                              : end_of_last(chat, conversation, part, rendered.text, with);
    if (!rendered.text.starts_with(before) || end < before.size()) {
      fail("data",
           "the template must render messages one after the other, but message {} changes with "
           "those around it: mark answers in the template by {{% generation %}}",
           messages.size());
    }
    answers.push_back({before.size(), end});
  }
  std::erase_if(answers, [](const Span& span) { return span.begin == span.end; });
  if (answers.empty())
    fail("data", "a conversation must have an answer of the model, but has none");
  return answers;
}

namespace {

// Throws Error for a tokenizer that spells out special tokens in a text, as SentencePiece does.
void require_special_tokens(const ChatTemplate& chat, const Tokenizer& tokenizer) {
  for (const auto* name : {"eos_token", "bos_token"}) {
    const auto text = chat.special_token(name);
    const auto id = text.empty() ? -1 : tokenizer.token_id(text);
    if (id < 0 || tokenizer.encode_rest(text) == std::vector<int64_t>{id}) continue;
    fail("data",
         "a tokenizer of conversations must find special tokens in a text, but this one reads "
         "\"{}\" "
         "as letters: name the model's tokenizer.json",
         text);
  }
}

}  // namespace

Document encode_conversation(const ChatTemplate& chat, const Tokenizer& tokenizer,
                             const ordered_json& conversation) {
  require_special_tokens(chat, tokenizer);
  const auto rendered = chat.render(conversation, false);
  Document encoded;
  size_t done = 0;
  const auto add = [&](size_t end) {
    const auto text = std::string_view(rendered.text).substr(done, end - done);
    const auto ids = tokenizer.encode_after(encoded.ids, text);
    encoded.ids.insert(encoded.ids.end(), ids.begin(), ids.end());
    done = end;
  };
  for (const auto& answer : answers_of(chat, conversation, rendered)) {
    add(answer.begin);
    const auto begin = encoded.ids.size();
    add(answer.end);
    if (encoded.ids.size() > begin) encoded.answers.push_back({begin, encoded.ids.size()});
  }
  add(rendered.text.size());
  if (encoded.answers.empty()) fail("data", "an answer must have tokens, but has none");
  return encoded;
}

AnswerEnds answer_ends(const ChatTemplate& chat, const Tokenizer& tokenizer) {
  require_special_tokens(chat, tokenizer);
  AnswerEnds ends;
  const ordered_json conversation = {
      {"messages",
       {{{"role", "user"}, {"content", "?"}}, {{"role", "assistant"}, {"content", "!"}}}}};
  const auto text = chat.render(conversation, false).text;
  const auto end = end_of_content(chat, conversation, 1, text);
  auto tail = std::string_view(text).substr(std::min(end, text.size()));
  // Spaces before the end of an answer are no end.
  const auto mark = tail.find_first_not_of(" \n");
  if (mark != tail.npos) tail.remove_prefix(mark);
  const auto after = tokenizer.encode_rest(tail);
  const auto special = tokenizer.special_ids();
  if (after.size() == 1 || (!after.empty() && std::ranges::count(special, after.front()) > 0)) {
    ends.tokens.insert(after.front());
  } else if (!tail.empty()) {
    const auto last = tail.find_last_not_of(" \n");
    ends.texts.emplace_back(last == tail.npos ? tail : tail.substr(0, last + 1));
  }
  const auto eos = tokenizer.token_id(chat.special_token("eos_token"));
  if (eos >= 0) ends.tokens.insert(eos);
  return ends;
}

void encode_conversations(const std::string& file, const ChatTemplate& chat,
                          const Tokenizer& tokenizer, const std::function<void(Document&&)>& take) {
  encode_lines(
      file, {},
      [&](const ordered_json& line) {
        check_conversation(line);
        return encode_conversation(chat, tokenizer, line);
      },
      take);
}

}  // namespace perigee::text
