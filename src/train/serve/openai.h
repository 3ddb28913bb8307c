// OpenAI's API: completions and chat completions, whole or streamed, and the list of models. Reference:
// https://platform.openai.com/docs/api-reference (completions, chat, models).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "train/serve/api.h"
#include "train/serve/text_service.h"
#include "train/task/draw_options.h"

namespace perigee::train {

struct OpenAiOptions {
  std::string model;     // its id
  int64_t tokens = 256;  // most tokens of an answer to a conversation that names none
  double seconds = 600;  // most time of a request, waiting included
  // Where a request names none; the seed of request k, counted from 0, is then draw.seed + 2^20 k.
  DrawOptions draw = {};
  std::vector<std::string> stops = {};  // of all requests, besides their own
};

// `service` must outlive the API.
std::unique_ptr<Api> make_openai_api(TextService& service, const OpenAiOptions& options);

}  // namespace perigee::train
