// A language model that answers requests for text from several threads. Torch-free.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "train/generate/text_request.h"

namespace perigee::train {

// Thread-safe.
class TextService {
 public:
  virtual ~TextService() = default;

  // The most tokens of a prompt and its answer.
  virtual int64_t context() const = 0;
  // Token ids of prompts are 0 to vocab() - 1.
  virtual int64_t vocab() const = 0;
  // How many requests may run and wait.
  virtual int64_t capacity() const = 0;

  virtual std::vector<int64_t> encode(const std::string& text) const = 0;
  virtual std::string decode(const std::vector<int64_t>& tokens) const = 0;
  // Returns the tokens of a conversation ("messages", and variables of the chat template) up to the
  // model's answer. Throws Error where there is no template, or it fails.
  virtual std::vector<int64_t> encode_chat(const nlohmann::ordered_json& conversation) const = 0;
  // The tokens that end a text, and an answer of a conversation.
  virtual const std::set<int64_t>& text_ends() const = 0;
  virtual const std::set<int64_t>& answer_ends() const = 0;
  // The stop strings of an answer of a conversation.
  virtual const std::vector<std::string>& answer_stops() const = 0;
  // The tokens that are no text: ends, roles, masks.
  virtual const std::set<int64_t>& special_tokens() const = 0;

  // Starts the requests, or makes them wait; their functions are called by another thread, and
  // `done` in any case. Returns false, and takes none of them, where more than capacity() would run
  // and wait.
  virtual bool add(std::vector<TextRequest> requests) = 0;
};

}  // namespace perigee::train
