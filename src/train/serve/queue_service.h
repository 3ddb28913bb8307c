// A generator whose slots are shared by the requests of a server.
#pragma once

#include <condition_variable>
#include <ctime>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "text/chat/chat_template.h"
#include "text/chat/conversation.h"
#include "train/generate/generator.h"
#include "train/generate/request_queue.h"
#include "train/serve/text_service.h"
#include "train/task/task.h"

namespace perigee::train {

class QueueService final : public TextService {
 public:
  // Begins to answer requests on a thread of its own, which alone uses the generator from now on:
  // that of rank 0. `tokenizer`: data.tokenizer of the job. Throws Error.
  QueueService(Generator& generator, const std::string& tokenizer, const ServeOptions& options);
  // As stop().
  ~QueueService() override;

  int64_t context() const override { return generator_.context(); }
  int64_t vocab() const override { return generator_.vocab(); }
  int64_t capacity() const override { return capacity_; }
  std::vector<int64_t> encode(const std::string& text) const override;
  std::string decode(const std::vector<int64_t>& tokens) const override;
  std::vector<int64_t> encode_chat(const nlohmann::ordered_json& conversation) const override;
  const std::set<int64_t>& text_ends() const override { return text_ends_; }
  const std::set<int64_t>& answer_ends() const override { return answer_ends_.tokens; }
  const std::vector<std::string>& answer_stops() const override { return answer_ends_.texts; }
  const std::set<int64_t>& special_tokens() const override { return special_; }
  bool add(std::vector<TextRequest> requests) override;

  // Cancels all requests, also later ones.
  void stop();
  // "", or why the model failed: all requests are cancelled, also later ones.
  std::string failure() const;

 private:
  void run();
  void answer();
  void wait_for_requests();

  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::optional<text::ChatTemplate> template_;
  std::string no_template_;  // why template_ is empty
  Generator& generator_;     // of the thread, but for its constants
  RequestQueue queue_;       // of the thread
  std::set<int64_t> text_ends_, special_;
  text::AnswerEnds answer_ends_;
  int64_t capacity_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<TextRequest> added_;
  int64_t open_ = 0;  // requests that are not done
  bool stopped_ = false;
  std::string failure_;
  std::thread thread_;
};

}  // namespace perigee::train
