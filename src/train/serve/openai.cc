#include "train/serve/openai.h"

#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <ctime>
#include <deque>
#include <mutex>
#include <utility>

#include "base/deadline.h"
#include "base/fail.h"
#include "base/text/utf8.h"
#include "train/serve/openai_requests.h"

namespace perigee::train {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint64_t kSeedStep = 1u << 20;  // between requests: more than the texts of one

std::string print(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The error's body (platform.openai.com/docs/guides/error-codes).
Json error_of(const ApiError& error) {
  const auto text = [](const std::string& value) { return value.empty() ? Json() : Json(value); };
  return {{"error",
           {{"message", error.message},
            {"type", error.status < 500 ? "invalid_request_error" : "server_error"},
            {"param", text(error.parameter)},
            {"code", text(error.code)}}}};
}

// An answer that is known.
class Known final : public Exchange {
 public:
  Known(int status, std::string body) : body_(std::move(body)) {
    head_.status = status;
    if (status == 503) head_.headers["Retry-After"] = "1";
  }
  std::optional<Head> head(milliseconds) override { return head_; }
  std::optional<Piece> next(milliseconds) override { return Piece{std::exchange(body_, ""), true}; }

 private:
  Head head_;
  std::string body_;
};

std::unique_ptr<Exchange> known(const ApiError& error) {
  return std::make_unique<Known>(error.status, print(error_of(error)));
}

// What happens to the texts of a request.
struct Event {
  size_t choice = 0;
  std::string text;  // a piece
  std::optional<Finish> finish = {};
  int64_t tokens = 0;  // at the end
};

// The events of a request, from the service's thread to the server's.
class Events {
 public:
  explicit Events(Clock::time_point deadline) : deadline_(deadline) {}

  void add(Event event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    wake_.notify_one();
  }
  std::optional<Event> next(milliseconds wait) {
    std::unique_lock lock(mutex_);
    if (!wake_.wait_for(lock, wait, [&] { return !events_.empty(); })) return std::nullopt;
    auto event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  void give_up() { given_up_ = true; }
  bool wanted() const { return !given_up_ && !late(); }
  bool late() const { return Clock::now() > deadline_; }

 private:
  const Clock::time_point deadline_;
  std::atomic<bool> given_up_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Event> events_;
};

struct Choice {
  Utf8Stream valid;
  std::string text;  // of an answer that is not streamed
  std::string reason;
};

class Completion final : public Exchange {
 public:
  // Starts the texts. Throws ApiError where too many wait.
  Completion(TextService& service, const OpenAiOptions& options, AskedTexts asked, std::string id)
      : events_(std::make_shared<Events>(deadline_after(options.seconds))),
        asked_(std::move(asked)),
        seconds_(options.seconds),
        choices_(asked_.requests.size()),
        left_(choices_.size()),
        base_({{"id", std::move(id)},
               {"object", asked_.chat ? asked_.streams ? "chat.completion.chunk" : "chat.completion"
                                      : "text_completion"},
               {"created", std::time(nullptr)},
               {"model", options.model}}) {
    for (size_t k = 0; k < choices_.size(); ++k) {
      auto& request = asked_.requests[k];
      request.take = [k, events = events_](std::string_view text) {
        events->add({.choice = k, .text = std::string(text)});
      };
      request.done = [k, events = events_](Finish finish, int64_t tokens) {
        events->add({.choice = k, .finish = finish, .tokens = tokens});
      };
      request.wanted = [events = events_] { return events->wanted(); };
    }
    if (!service.add(std::exchange(asked_.requests, {}))) {
      throw ApiError{.status = 503, .message = "too many requests wait: try again", .code = "busy"};
    }
    if (!asked_.streams) return;
    head_ = {.content_type = "text/event-stream",
             .headers = {{"Cache-Control", "no-store"}},
             .streams = true};
    for (size_t k = 0; k < choices_.size(); ++k) {
      if (asked_.chat) ready_ += chunk(k, {{"role", "assistant"}, {"content", ""}});
      if (!asked_.before[k].empty()) ready_ += chunk(k, asked_.before[k]);
    }
  }

  ~Completion() override { events_->give_up(); }

  std::optional<Head> head(milliseconds wait) override {
    if (head_) return head_;
    const auto until = Clock::now() + wait;
    // The status is known when all texts are.
    while (left_ > 0) {
      const auto rest = std::chrono::duration_cast<milliseconds>(until - Clock::now());
      auto event = events_->next(std::max(rest, milliseconds(0)));
      if (!event) return std::nullopt;
      if (event->finish == Finish::cancelled) {
        const auto error = ended_early();
        ready_ = print(error_of(error));
        head_ = Head{.status = error.status};
        return head_;
      }
      auto& choice = choices_[event->choice];
      choice.text += choice.valid.add(event->text);
      if (event->finish) choice.text += end(*event);
    }
    ready_ = whole();
    head_ = Head();
    return head_;
  }

  std::optional<Piece> next(milliseconds wait) override {
    if (!asked_.streams) return Piece{std::exchange(ready_, ""), true};
    if (!ready_.empty()) return Piece{std::exchange(ready_, "")};
    auto event = events_->next(wait);
    if (!event) return std::nullopt;
    if (event->finish == Finish::cancelled) {
      left_ = 0;
      return Piece{"data: " + print(error_of(ended_early())) + "\n\n", true};
    }
    Piece piece;
    const auto k = event->choice;
    auto text = choices_[k].valid.add(event->text);
    if (event->finish) text += end(*event);
    if (!text.empty()) {
      piece.text = asked_.chat ? chunk(k, {{"content", text}}) : chunk(k, text);
    }
    if (event->finish)
      piece.text += chunk(k, asked_.chat ? Json::object() : Json(""), choices_[k].reason);
    if (left_ > 0) return piece;
    if (asked_.usage) {
      auto last = base_;
      last["choices"] = Json::array();
      last["usage"] = usage();
      piece.text += "data: " + print(last) + "\n\n";
    }
    piece.text += "data: [DONE]\n\n";
    piece.last = true;
    return piece;
  }

 private:
  // Counts a text that is complete. Returns the rest of it.
  std::string end(const Event& event) {
    --left_;
    tokens_ += event.tokens;
    auto& choice = choices_[event.choice];
    choice.reason = *event.finish == Finish::most ? "length" : "stop";
    return choice.valid.end();
  }

  // Why the service cancelled a text.
  ApiError ended_early() const {
    if (events_->late()) {
      return {.status = 504,
              .message = fmt::format("the request took longer than {} s: ask for fewer tokens",
                                     seconds_),
              .code = "timeout"};
    }
    return {.status = 503, .message = "the server ends"};
  }

  // Returns an event of the stream with a change of a choice: its delta, or its text.
  std::string chunk(size_t k, Json change, const std::string& reason = "") const {
    auto json = base_;
    json["choices"] = Json::array();
    json["choices"].push_back({{"index", k},
                               {asked_.chat ? "delta" : "text", std::move(change)},
                               {"logprobs", nullptr},
                               {"finish_reason", reason.empty() ? Json() : Json(reason)}});
    if (asked_.usage) json["usage"] = nullptr;
    return "data: " + print(json) + "\n\n";
  }

  std::string whole() const {
    auto json = base_;
    json["choices"] = Json::array();
    for (size_t k = 0; k < choices_.size(); ++k) {
      const auto text = asked_.before[k] + choices_[k].text;
      Json choice = {{"index", k}};
      if (asked_.chat) {
        choice["message"] = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
      } else {
        choice["text"] = text;
      }
      choice["logprobs"] = nullptr;
      choice["finish_reason"] = choices_[k].reason;
      json["choices"].push_back(std::move(choice));
    }
    json["usage"] = usage();
    return print(json);
  }

  Json usage() const {
    return {{"prompt_tokens", asked_.prompt_tokens},
            {"completion_tokens", tokens_},
            {"total_tokens", asked_.prompt_tokens + tokens_}};
  }

  std::shared_ptr<Events> events_;
  AskedTexts asked_;
  const double seconds_;
  std::vector<Choice> choices_;
  size_t left_;         // texts that are not complete
  int64_t tokens_ = 0;  // of complete texts
  const Json base_;     // members of all bodies
  std::optional<Head> head_;
  std::string ready_;  // text that is to be given next
};

class OpenAi final : public Api {
 public:
  OpenAi(TextService& service, const OpenAiOptions& options)
      : service_(service), options_(options), started_(std::time(nullptr)) {}

  std::unique_ptr<Exchange> open(const Call& call) override {
    try {
      return answer(call);
    } catch (const ApiError& error) {
      return known(error);
    } catch (const std::exception& error) {
      return known({.status = 500, .message = error.what()});
    }
  }

  std::string error(int status, const std::string& message) const override {
    return print(error_of({.status = status, .message = message}));
  }

 private:
  std::unique_ptr<Exchange> answer(const Call& call) {
    if (call.path == "/health") return get(call, {{"status", "ok"}});
    if (call.path == "/v1/models")
      return get(call, {{"object", "list"}, {"data", Json::array({model()})}});
    if (call.path == "/v1/models/" + options_.model) return get(call, model());
    const bool chat = call.path == "/v1/chat/completions";
    if (!chat && call.path != "/v1/completions") {
      throw ApiError{.status = 404,
                     .message = fmt::format("there is no {}: this server has /v1/models, "
                                            "/v1/completions and /v1/chat/completions",
                                            call.path)};
    }
    require_method(call, "POST");
    // A page of another site cannot send this type without asking this server first.
    if (!call.content_type.starts_with("application/json")) {
      throw ApiError{.status = 415, .message = "the body's Content-Type must be application/json"};
    }
    const auto number = requests_++;
    auto asked = read_openai_request(service_, options_, chat, call.body,
                                     options_.draw.seed + number * kSeedStep);
    return std::make_unique<Completion>(
        service_, options_, std::move(asked),
        fmt::format("{}-{:x}-{}", chat ? "chatcmpl" : "cmpl", started_, number));
  }

  static void require_method(const Call& call, const char* method) {
    if (call.method == method) return;
    throw ApiError{.status = 405,
                   .message = fmt::format("{} needs the method {}", call.path, method)};
  }

  static std::unique_ptr<Exchange> get(const Call& call, const Json& json) {
    require_method(call, "GET");
    return std::make_unique<Known>(200, print(json));
  }

  Json model() const {
    return {{"id", options_.model},
            {"object", "model"},
            {"created", started_},
            {"owned_by", "perigee"}};
  }

  TextService& service_;
  const OpenAiOptions options_;
  const std::time_t started_;
  std::atomic<uint64_t> requests_ = 0;
};

}  // namespace

std::unique_ptr<Api> make_openai_api(TextService& service, const OpenAiOptions& options) {
  return std::make_unique<OpenAi>(service, options);
}

}  // namespace perigee::train
