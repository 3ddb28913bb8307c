// Requests for text, which wait for a free slot of a generator and run side by side.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "text/tokenizer.h"
#include "train/generate/generator.h"
#include "train/generate/text_request.h"
#include "train/generate/token_draw.h"

namespace perigee::train {

// Not thread-safe.
class RequestQueue {
 public:
  // `generator` and `tokenizer` must outlive the queue.
  RequestQueue(Generator& generator, const text::Tokenizer& tokenizer);
  ~RequestQueue();

  // Adds a request. Throws Error where its draw options are out of range, or its prompt is empty.
  // A text that reaches the generator's context goes on after its last half alone.
  void add(TextRequest request);

  // Ends the requests that are no longer wanted, starts waiting ones in free slots, in their order,
  // and adds one token to each text. Returns whether requests are left.
  bool step();
  void run() {
    while (step()) {
    }
  }
  // Ends all requests.
  void cancel();

 private:
  struct Running;

  void drop_unwanted();
  size_t slot_for(const TextRequest& request) const;
  void start(size_t slot);
  void draw(size_t slot, const at::Tensor& logits);
  void finish(size_t slot, Finish finish);

  Generator& generator_;
  const text::Tokenizer& tokenizer_;
  std::deque<TextRequest> waiting_;
  std::vector<std::unique_ptr<Running>> running_;  // by slot
};

}  // namespace perigee::train
