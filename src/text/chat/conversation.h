// Conversations as token ids, and which of them are the model's answers.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "text/chat/chat_template.h"
#include "text/documents/lines.h"
#include "text/tokenizer.h"

namespace perigee::text {

// Returns the bytes of `text` that are answers: the marked ones where the template marks answers,
// else for each message of the role "assistant" the part that rendering it adds to the messages
// before it, also where later messages change it. Throws Error where there is no answer, or a
// message changes the text of earlier ones.
std::vector<Span> answers_of(const ChatTemplate& chat, const nlohmann::ordered_json& conversation,
                             const jinja::Rendered& rendered);

// Renders and encodes a conversation. Answers are encoded apart from the texts around them, as the
// model generates them after a prompt; none of them is empty. Throws Error as above.
Document encode_conversation(const ChatTemplate& chat, const Tokenizer& tokenizer,
                             const nlohmann::ordered_json& conversation);

// The tokens and the texts of which each ends an answer.
struct AnswerEnds {
  std::set<int64_t> tokens;
  std::vector<std::string> texts;
};

// Returns how answers end: with the text that the template puts after one, as a token where it is
// one token or begins with a special one, and with eos_token where that is one token.
AnswerEnds answer_ends(const ChatTemplate& chat, const Tokenizer& tokenizer);

// Throws Error unless the line is {"messages": [{"role": ..., "content": ...}, ...], ...}.
void check_conversation(const nlohmann::ordered_json& line);

// Encodes the conversations of a file of JSON lines, also a compressed one, on all cores, and gives
// them to `take` in their order. Memory does not grow with the file. Throws Error naming the file and
// the line.
void encode_conversations(const std::string& file, const ChatTemplate& chat,
                          const Tokenizer& tokenizer, const std::function<void(Document&&)>& take);

}  // namespace perigee::text
