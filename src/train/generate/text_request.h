// A request for text of a model. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "train/task/draw_options.h"

namespace perigee::train {

// Why a request's text ended.
enum class Finish : uint8_t {
  ended,      // a token of TextRequest::ends, or a stop string
  most,       // the number of tokens
  cancelled,  // `wanted` returned false, or the queue was cancelled
};

struct TextRequest {
  std::vector<int64_t> prompt;
  int64_t most = 256;  // tokens
  DrawOptions draw;
  std::vector<std::string> stops;  // texts that end the text and are no part of it
  std::set<int64_t> ends;          // tokens that do
  std::set<int64_t> hidden = {};   // tokens whose own texts are left out of the text
  // Called with each piece of text as it is known.
  std::function<void(std::string_view text)> take = {};
  // Called once, after the last piece, with the number of tokens that were drawn.
  std::function<void(Finish finish, int64_t tokens)> done = {};
  // Asked before each step of the queue, also while the request waits; false: it is cancelled.
  std::function<bool()> wanted = {};
};

}  // namespace perigee::train
