// Requests for text, which wait for a free slot of a generator and run side by side.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "train/generate/generator.h"
#include "train/generate/token_draw.h"

namespace perigee::train {

// Why a request's text ended.
enum class Finish : uint8_t {
  ended,      // a token of TextRequest::ends, or a stop string
  most,       // the number of tokens
  cancelled,  // `take` returned false
};

struct TextRequest {
  std::vector<int64_t> prompt;
  int64_t most = 256;  // tokens
  DrawOptions draw;
  std::vector<std::string> stops;  // texts that end the text and are no part of it
  std::set<int64_t> ends;          // tokens that do
  // Called with each piece of text as it is known; false: the request is cancelled.
  std::function<bool(std::string_view text)> take = {};
  // Called once, after the last piece, with the number of tokens that were drawn.
  std::function<void(Finish finish, int64_t tokens)> done = {};
};

// Not thread-safe.
class RequestQueue {
 public:
  // `generator` and `tokenizer` must outlive the queue.
  RequestQueue(Generator& generator, const text::Tokenizer& tokenizer);
  ~RequestQueue();

  // Adds a request. Throws Error where its draw options are out of range, or its prompt is empty.
  // A text that reaches the generator's context goes on after its last half alone.
  void add(TextRequest request);

  // Starts waiting requests in free slots, in their order, and adds one token to each text. Returns
  // whether requests are left.
  bool step();
  void run() {
    while (step()) {
    }
  }

 private:
  struct Running;

  void start(size_t slot);
  void draw(size_t slot, const at::Tensor& logits);
  void finish(size_t slot, Finish finish);

  Generator& generator_;
  const text::Tokenizer& tokenizer_;
  std::deque<TextRequest> waiting_;
  std::vector<std::unique_ptr<Running>> running_;  // by slot
};

}  // namespace perigee::train
