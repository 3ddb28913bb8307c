#include "train/generate/request_queue.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/fail.h"
#include "text/reply.h"

namespace perigee::train {
namespace {

bool is_wanted(const TextRequest& request) { return !request.wanted || request.wanted(); }

void end(const TextRequest& request, Finish finish, int64_t tokens) {
  if (request.done) request.done(finish, tokens);
}

}  // namespace

struct RequestQueue::Running {
  TextRequest request;
  TokenDraw draw;
  text::Reply reply;
  int64_t drawn = 0;
  std::optional<int64_t> next = {};  // the token that the text gets in the next step
};

RequestQueue::RequestQueue(Generator& generator, const text::Tokenizer& tokenizer)
    : generator_(generator),
      tokenizer_(tokenizer),
      running_(static_cast<size_t>(generator.slots())) {}

RequestQueue::~RequestQueue() = default;

void RequestQueue::add(TextRequest request) {
  check(request.draw);
  if (request.prompt.empty()) fail("generate", "a prompt needs at least one token");
  waiting_.push_back(std::move(request));
}

void RequestQueue::cancel() {
  for (const auto& request : std::exchange(waiting_, {})) end(request, Finish::cancelled, 0);
  for (size_t slot = 0; slot < running_.size(); ++slot) {
    if (running_[slot]) finish(slot, Finish::cancelled);
  }
}

void RequestQueue::drop_unwanted() {
  std::erase_if(waiting_, [](const TextRequest& request) {
    if (is_wanted(request)) return false;
    end(request, Finish::cancelled, 0);
    return true;
  });
  for (size_t slot = 0; slot < running_.size(); ++slot) {
    if (running_[slot] && !is_wanted(running_[slot]->request)) finish(slot, Finish::cancelled);
  }
}

// Returns the free slot whose text begins with most tokens of the request's prompt: they are not
// computed again. No slot is free: the number of slots.
size_t RequestQueue::slot_for(const TextRequest& request) const {
  size_t best = running_.size();
  ptrdiff_t most = -1;
  for (size_t slot = 0; slot < running_.size(); ++slot) {
    if (running_[slot]) continue;
    const auto& text = generator_.text(static_cast<int64_t>(slot));
    const auto common = std::ranges::mismatch(text, request.prompt).in1 - text.begin();
    if (common > most) {
      most = common;
      best = slot;
    }
  }
  return best;
}

bool RequestQueue::step() {
  drop_unwanted();
  while (!waiting_.empty()) {
    const auto slot = slot_for(waiting_.front());
    if (slot == running_.size()) break;
    start(slot);
  }
  std::vector<std::optional<int64_t>> tokens(running_.size());
  bool extends = false;
  for (size_t slot = 0; slot < running_.size(); ++slot) {
    if (!running_[slot]) continue;
    const auto& text = generator_.text(static_cast<int64_t>(slot));
    if (std::ssize(text) < generator_.context()) {
      tokens[slot] = running_[slot]->next;
      extends = true;
      continue;
    }
    // A context of one token keeps the new one alone.
    const auto kept = generator_.context() / 2;
    std::vector<int64_t> last(text.end() - kept, text.end());
    last.push_back(*running_[slot]->next);
    draw(slot, generator_.fill(static_cast<int64_t>(slot), last));
  }
  if (extends) {
    const auto logits = generator_.extend(tokens);
    for (size_t slot = 0; slot < running_.size(); ++slot) {
      if (tokens[slot]) draw(slot, logits.select(0, static_cast<int64_t>(slot)));
    }
  }
  return !waiting_.empty() ||
         std::ranges::any_of(running_, [](const auto& running) { return running != nullptr; });
}

// Starts the first waiting request in a free slot. It may end at once.
void RequestQueue::start(size_t slot) {
  auto request = std::move(waiting_.front());
  waiting_.pop_front();
  const std::span<const int64_t> prompt = request.prompt;
  const auto read = prompt.last(std::min(prompt.size(), static_cast<size_t>(generator_.context())));
  const TokenDraw draws(request.draw);
  text::Reply reply(tokenizer_, prompt, request.stops);
  running_[slot] = std::make_unique<Running>(std::move(request), draws, std::move(reply));
  auto& running = *running_[slot];
  if (running.request.most <= 0) return finish(slot, Finish::most);
  const std::vector<int64_t> text(read.begin(), read.end());
  draw(slot, generator_.fill(static_cast<int64_t>(slot), text));
}

// Draws the slot's next token from the logits after its text, and gives its text.
void RequestQueue::draw(size_t slot, const at::Tensor& logits) {
  auto& running = *running_[slot];
  const auto token = running.draw.next(logits, generator_.text(static_cast<int64_t>(slot)));
  ++running.drawn;
  if (running.request.ends.contains(token)) return finish(slot, Finish::ended);
  const bool is_hidden = running.request.hidden.contains(token);
  const auto text = is_hidden ? std::string() : running.reply.add(token);
  if (!text.empty() && running.request.take) running.request.take(text);
  if (running.reply.stopped()) return finish(slot, Finish::ended);
  if (running.drawn >= running.request.most) return finish(slot, Finish::most);
  running.next = token;
}

void RequestQueue::finish(size_t slot, Finish finish) {
  const auto ended = std::exchange(running_[slot], nullptr);
  if (finish != Finish::cancelled) {
    const auto rest = ended->reply.end();
    if (!rest.empty() && ended->request.take) ended->request.take(rest);
  }
  end(ended->request, finish, ended->drawn);
}

}  // namespace perigee::train
