#include "train/serve/queue_service.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "base/log_format.h"
#include "text/documents/end_of_text.h"

namespace perigee::train {
namespace {

void cancel(const TextRequest& request) {
  if (request.done) request.done(Finish::cancelled, 0);
}

}  // namespace

QueueService::QueueService(Generator& generator, const std::string& tokenizer,
                           const ServeOptions& options)
    : tokenizer_(text::make_tokenizer(tokenizer)),
      generator_(generator),
      queue_(generator_, *tokenizer_),
      capacity_(options.slots + options.waiting) {
  for (const auto id : tokenizer_->special_ids()) special_.insert(id);
  try {
    text_ends_ = {text::end_of_text(*tokenizer_, tokenizer, "")};
  } catch (const Error& error) {
    log::info("texts end after their number of tokens: {}", error.what());
  }
  try {
    template_.emplace(options.template_file, tokenizer, std::time(nullptr));
    answer_ends_ = text::answer_ends(*template_, *tokenizer_);
  } catch (const Error& error) {
    // A template that was asked for must work.
    if (!options.template_file.empty()) throw;
    template_.reset();
    no_template_ = error.what();
    log::info("conversations are refused: {}", error.what());
  }
  if (!generator_.uncached().empty()) {
    log::info("every token costs as much as the whole text, since the model {}",
              generator_.uncached());
  }
  thread_ = std::thread([this] { run(); });
}

QueueService::~QueueService() {
  stop();
  thread_.join();
}

void QueueService::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  wake_.notify_one();
}

std::string QueueService::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::vector<int64_t> QueueService::encode(const std::string& text) const {
  return tokenizer_->encode(text);
}

std::string QueueService::decode(const std::vector<int64_t>& tokens) const {
  return tokenizer_->decode(tokens);
}

std::vector<int64_t> QueueService::encode_chat(const nlohmann::ordered_json& conversation) const {
  if (!template_) fail("serve", "conversations need a chat template: {}", no_template_);
  return tokenizer_->encode(template_->render(conversation, /*prompt=*/true).text);
}

bool QueueService::add(std::vector<TextRequest> requests) {
  {
    const std::lock_guard lock(mutex_);
    const auto open = open_ + std::ssize(requests);
    if (!stopped_ && open > capacity_) return false;
    if (!stopped_) {
      open_ = open;
      std::ranges::move(requests, std::back_inserter(added_));
      wake_.notify_one();
      return true;
    }
  }
  std::ranges::for_each(requests, cancel);
  return true;
}

void QueueService::run() {
  try {
    answer();
    generator_.end();
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    failure_ = error.what();
    stopped_ = true;
  }
  queue_.cancel();
  std::vector<TextRequest> left;
  {
    const std::lock_guard lock(mutex_);
    left = std::exchange(added_, {});
  }
  std::ranges::for_each(left, cancel);
}

void QueueService::wait_for_requests() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] { return stopped_ || !added_.empty(); });
}

void QueueService::answer() {
  bool busy = false;
  while (true) {
    std::vector<TextRequest> added;
    if (!busy) generator_.wait([&] { wait_for_requests(); });
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) return;
      added = std::exchange(added_, {});
    }
    for (auto& request : added) {
      request.done = [this, done = std::move(request.done)](Finish finish, int64_t tokens) {
        {
          const std::lock_guard lock(mutex_);
          --open_;
        }
        if (done) done(finish, tokens);
      };
      queue_.add(std::move(request));
    }
    busy = queue_.step();
  }
}

}  // namespace perigee::train
