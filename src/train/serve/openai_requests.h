// The bodies of OpenAI's requests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "train/serve/openai.h"

namespace perigee::train {

// Thrown for a request that is not answered.
struct ApiError {
  int status = 400;
  std::string message;
  std::string parameter = "";  // of the body
  std::string code = "";       // "model_not_found"
};

// What a request asks for: `choices` texts after each prompt.
struct AskedTexts {
  std::vector<TextRequest> requests;  // without functions
  std::vector<std::string> before;    // what each text begins with: "", or the prompt (echo)
  int64_t prompt_tokens = 0;          // each prompt counted once
  bool chat = false;
  bool streams = false;
  bool usage = false;  // the stream ends with numbers of tokens
};

// Reads the body of a request for completions, or chat completions; besides OpenAI's options it may
// have those of vLLM: top_k, repetition_penalty, ignore_eos (tokens do not end texts). `seed`: of the first text where
// the body has none. Throws ApiError for a body that is no request, an option that is unknown,
// unsupported or out of range, another model, and a prompt that does not fit.
AskedTexts read_openai_request(const TextService& service, const OpenAiOptions& options, bool chat,
                               std::string_view body, uint64_t seed);

}  // namespace perigee::train
