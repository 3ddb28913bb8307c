#include "train/commands/chat.h"

#include <algorithm>
#include <ctime>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/log_format.h"
#include "text/chat/chat_template.h"
#include "text/chat/conversation.h"
#include "text/tokenizer.h"
#include "train/generate/generator.h"
#include "train/generate/request_queue.h"

namespace perigee::train {
namespace {

using Json = nlohmann::ordered_json;

Generator& open_generator(const Task& task, RankSession& session, const SampleOptions& options) {
  session.generator = std::make_unique<Generator>(
      task,
      GeneratorOptions{.checkpoint = options.checkpoint, .slots = 1, .context = options.context},
      session.connection, session.traces);
  return *session.generator;
}

// The conversation on rank 0.
class Chat {
 public:
  Chat(const Task& task, RankSession& session, const ChatOptions& options, const ChatIo& io)
      : options_(options),
        io_(io),
        template_(options.template_file, task.job.data.tokenizer, std::time(nullptr)),
        tokenizer_(text::make_tokenizer(task.job.data.tokenizer)),
        generator_(open_generator(task, session, options.sample)),
        queue_(generator_, *tokenizer_),
        ends_(text::answer_ends(template_, *tokenizer_)),
        stops_(options.sample.stops) {
    std::ranges::copy(ends_.texts, std::back_inserter(stops_));
    if (ends_.tokens.empty() && ends_.texts.empty()) {
      log::warn("the chat template puts nothing after an answer: answers end after {} tokens",
                options.sample.tokens);
    }
  }

  void run() {
    start();
    while (const auto message = read()) {
      if (*message == "/new") {
        start();
        continue;
      }
      const auto prompt = add(*message);
      if (prompt) messages_.push_back({{"role", "assistant"}, {"content", answer(*prompt)}});
    }
    generator_.end();
  }

 private:
  // Returns the user's next message. Who writes and reads may pause.
  std::optional<std::string> read() {
    std::optional<std::string> message;
    generator_.wait([&] { message = io_.read(); });
    return message;
  }

  void print(std::string_view text) {
    generator_.wait([&] { io_.print(text); });
  }

  void start() {
    messages_ = Json::array();
    if (!options_.system.empty()) {
      messages_.push_back({{"role", "system"}, {"content", options_.system}});
    }
  }

  // Adds the user's message. Returns the tokens of the conversation up to the answer, without its
  // oldest messages where they leave no room for an answer; nothing where the message leaves none,
  // which is not added.
  std::optional<std::vector<int64_t>> add(const std::string& message) {
    auto messages = messages_;
    messages.push_back({{"role", "user"}, {"content", message}});
    const auto room = generator_.context() -
                      std::min(options_.sample.tokens, generator_.context() / 2);
    const auto first = static_cast<Json::difference_type>(options_.system.empty() ? 0 : 1);
    bool cut = false;
    while (true) {
      auto ids = tokenizer_->encode(template_.render({{"messages", messages}}, true).text);
      if (std::ssize(ids) <= room) {
        if (cut) log::info("the oldest messages are left out: the model reads {} tokens", room);
        messages_ = std::move(messages);
        return ids;
      }
      if (std::ssize(messages) <= first + 1) {
        log::warn(
            "a message may have at most {} tokens with its template, but has {}: it is left out",
            room, ids.size());
        return std::nullopt;
      }
      // A question goes with its answer.
      messages.erase(messages.begin() + first, messages.begin() + first + 2);
      cut = true;
    }
  }

  std::string answer(const std::vector<int64_t>& prompt) {
    std::string answer;
    TextRequest request{.prompt = prompt,
                        .most = options_.sample.tokens,
                        .draw = options_.sample.draw,
                        .stops = stops_,
                        .ends = ends_.tokens};
    request.draw.seed += answers_++;
    request.take = [&](std::string_view text) {
      print(text);
      answer += text;
    };
    queue_.add(std::move(request));
    queue_.run();
    print("\n");
    return answer;
  }

  const ChatOptions& options_;
  const ChatIo& io_;
  text::ChatTemplate template_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  Generator& generator_;
  RequestQueue queue_;
  text::AnswerEnds ends_;
  std::vector<std::string> stops_;
  Json messages_ = Json::array();
  uint64_t answers_ = 0;
};

}  // namespace

void chat(const Task& task, RankSession& session, const ChatOptions& options, const ChatIo& io) {
  check(options.sample.draw);
  if (session.communicator->rank() != 0) {
    return open_generator(task, session, options.sample).serve_commands();
  }
  Chat(task, session, options, io).run();
}

}  // namespace perigee::train
