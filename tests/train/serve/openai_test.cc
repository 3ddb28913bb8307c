// OpenAI's API over a service without a model.
#include "train/serve/openai.h"

#include <catch2/catch.hpp>
#include <deque>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/fail.h"
#include "base/infinity.h"

namespace perigee::train {
namespace {

using Catch::Contains;
using nlohmann::json;
using std::chrono::milliseconds;

// A service whose tokens are bytes; it answers when the test says so.
class Bytes : public TextService {
 public:
  std::deque<TextRequest> requests;
  int64_t most = 100;  // requests

  int64_t room = 64;  // tokens

  int64_t context() const override { return room; }
  int64_t vocab() const override { return 128; }
  int64_t capacity() const override { return most; }
  std::vector<int64_t> encode(const std::string& text) const override {
    return {text.begin(), text.end()};
  }
  std::string decode(const std::vector<int64_t>& tokens) const override {
    return {tokens.begin(), tokens.end()};
  }
  std::vector<int64_t> encode_chat(const nlohmann::ordered_json& conversation) const override {
    if (conversation["messages"].back()["content"] == "fail") fail("template", "line 7 fails");
    return encode(conversation.dump());
  }
  const std::set<int64_t>& text_ends() const override { return text_ends_; }
  const std::set<int64_t>& answer_ends() const override { return answer_ends_; }
  const std::vector<std::string>& answer_stops() const override { return answer_stops_; }
  const std::set<int64_t>& special_tokens() const override { return special_; }
  bool add(std::vector<TextRequest> added) override {
    if (std::ssize(requests) + std::ssize(added) > most) return false;
    for (auto& request : added) requests.push_back(std::move(request));
    return true;
  }

  // Answers all requests with "ab", a piece a letter.
  void answer(Finish finish = Finish::ended) {
    for (auto& request : std::exchange(requests, {})) {
      request.take("a");
      request.take("b");
      request.done(finish, 3);
    }
  }

 private:
  std::set<int64_t> text_ends_ = {0}, answer_ends_ = {1}, special_ = {0, 1, '#'};
  std::vector<std::string> answer_stops_ = {"<end>"};
};

struct Server {
  Bytes service;
  std::unique_ptr<Api> api;

  explicit Server(OpenAiOptions options = {}) {
    if (options.model.empty()) options.model = "m";
    api = make_openai_api(service, options);
  }
  std::unique_ptr<Exchange> post(const std::string& path, const std::string& body) const {
    return api->open(
        {.method = "POST", .path = path, .content_type = "application/json", .body = body});
  }
};

struct Answer {
  int status = 0;
  std::string body;
  json value() const { return json::parse(body); }
};

// Returns a whole answer, which the service has given.
Answer whole(Exchange& exchange) {
  const auto head = exchange.head(milliseconds(1000));
  REQUIRE(head);
  Answer answer{head->status, ""};
  while (const auto piece = exchange.next(milliseconds(1000))) {
    answer.body += piece->text;
    if (piece->last) return answer;
  }
  FAIL("the answer has no end");
  return answer;
}

// Returns the error of a request that is refused at once.
json refused(const Server& server, const std::string& path, const std::string& body) {
  const auto answer = whole(*server.post(path, body));
  CHECK(answer.status == 400);
  return answer.value()["error"];
}

// Returns the data of a stream's events.
std::vector<std::string> events(const std::string& stream) {
  std::vector<std::string> found;
  for (size_t at = 0; at < stream.size();) {
    REQUIRE(stream.compare(at, 6, "data: ") == 0);
    const auto end = stream.find("\n\n", at);
    REQUIRE(end != std::string::npos);
    found.push_back(stream.substr(at + 6, end - at - 6));
    at = end + 2;
  }
  return found;
}

TEST_CASE("a completion has a text for each prompt and choice, with counts of tokens") {
  Server server;
  const auto exchange = server.post(
      "/v1/completions",
      R"({"model":"m","prompt":["xyz",[65,66]],"n":2,"ignore_eos":false,"max_tokens":3,"echo":true})");
  CHECK_FALSE(exchange->head(milliseconds(0)));
  REQUIRE(server.service.requests.size() == 4);
  CHECK(server.service.requests[0].prompt == std::vector<int64_t>{'x', 'y', 'z'});
  CHECK(server.service.requests[3].prompt == std::vector<int64_t>{65, 66});
  CHECK(server.service.requests[3].most == 3);
  CHECK(server.service.requests[3].ends == std::set<int64_t>{0});
  CHECK(server.service.requests[3].stops.empty());
  CHECK(server.service.requests[0].draw.seed != server.service.requests[1].draw.seed);
  server.service.answer(Finish::most);
  const auto answer = whole(*exchange);
  CHECK(answer.status == 200);
  const auto value = answer.value();
  CHECK(value["object"] == "text_completion");
  CHECK(value["model"] == "m");
  REQUIRE(value["choices"].size() == 4);
  CHECK(value["choices"][1]["text"] == "xyzab");
  CHECK(value["choices"][2] ==
        json({{"index", 2}, {"text", "ABab"}, {"logprobs", nullptr}, {"finish_reason", "length"}}));
  CHECK(value["usage"] ==
        json({{"prompt_tokens", 5}, {"completion_tokens", 12}, {"total_tokens", 17}}));
}

TEST_CASE("templates get the arguments of earlier calls as objects") {
  Server server({.tokens = 7});
  server.service.room = 200;
  server.post("/v1/chat/completions", R"({"messages": [{"role": "assistant", "content": null,
      "tool_calls": [{"function": {"name": "f", "arguments": "{\"x\":1}"}},
                     {"function": {"name": "g", "arguments": "no JSON"}}]}]})");
  REQUIRE(server.service.requests.size() == 1);
  const auto got = json::parse(server.service.decode(server.service.requests[0].prompt));
  const auto& message = got["messages"][0];
  CHECK(message["content"].is_null());
  CHECK(message["tool_calls"][0]["function"]["arguments"] == json({{"x", 1}}));
  CHECK(message["tool_calls"][1]["function"]["arguments"] == "no JSON");
}

TEST_CASE("a chat completion answers the conversation with the options of the request") {
  Server server({.tokens = 7, .draw = {.top_p = 0.5}, .stops = {"END"}});
  const auto exchange = server.post("/v1/chat/completions", R"({
      "messages": [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}],
      "temperature": 0.25, "seed": 9, "stop": "\n", "top_k": 4, "repetition_penalty": 1.5})");
  REQUIRE(server.service.requests.size() == 1);
  const auto& request = server.service.requests[0];
  CHECK(server.service.decode(request.prompt) ==
        R"({"messages":[{"role":"user","content":"hi"}]})");
  CHECK(request.most == 7);
  CHECK(request.ends == std::set<int64_t>{1});
  CHECK(request.stops == std::vector<std::string>{"\n", "END", "<end>"});
  CHECK(request.draw.temperature == 0.25);
  CHECK(request.draw.top_p == 0.5);
  CHECK(request.draw.top_k == 4);
  CHECK(request.draw.repetition_penalty == 1.5);
  CHECK(request.draw.seed == 9);
  server.service.answer();
  const auto value = whole(*exchange).value();
  CHECK(value["object"] == "chat.completion");
  CHECK(value["choices"][0]["message"] ==
        json({{"role", "assistant"}, {"content", "ab"}, {"refusal", nullptr}}));
  CHECK(value["choices"][0]["finish_reason"] == "stop");
}

TEST_CASE("a stream has an event for each piece, the reason, counts and an end") {
  Server server;
  const auto chat = server.post(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}})");
  CHECK(chat->head(milliseconds(0))->content_type == "text/event-stream");
  CHECK(chat->head(milliseconds(0))->streams);
  server.service.answer();
  const auto chat_events = events(whole(*chat).body);
  REQUIRE(chat_events.size() == 6);
  const auto delta = [&](size_t i) { return json::parse(chat_events[i])["choices"][0]["delta"]; };
  CHECK(delta(0) == json({{"role", "assistant"}, {"content", ""}}));
  CHECK(delta(1) == json({{"content", "a"}}));
  CHECK(delta(2) == json({{"content", "b"}}));
  CHECK(delta(3) == json::object());
  CHECK(json::parse(chat_events[1])["object"] == "chat.completion.chunk");
  CHECK(json::parse(chat_events[2])["choices"][0]["finish_reason"] == nullptr);
  CHECK(json::parse(chat_events[3])["choices"][0]["finish_reason"] == "stop");
  CHECK(json::parse(chat_events[4])["choices"] == json::array());
  CHECK(json::parse(chat_events[4])["usage"]["completion_tokens"] == 3);
  CHECK(chat_events[5] == "[DONE]");

  const auto text = server.post("/v1/completions", R"({"prompt":"x","stream":true,"n":2})");
  server.service.answer();
  const auto text_events = events(whole(*text).body);
  REQUIRE(text_events.size() == 7);
  CHECK(json::parse(text_events[4])["choices"][0]["text"] == "b");
  CHECK(json::parse(text_events[4])["choices"][0]["index"] == 1);
}

TEST_CASE("a character that two pieces make is whole in an answer, and bad bytes are replaced") {
  Server server;
  for (const bool streams : {false, true}) {
    const auto exchange = server.post(
        "/v1/completions", streams ? R"({"prompt":"x","stream":true})" : R"({"prompt":"x"})");
    auto& request = server.service.requests[0];
    request.take("\xc3");
    request.take("\xa9\xff");
    request.done(Finish::ended, 2);
    server.service.requests.clear();
    std::string text;
    if (streams) {
      for (const auto& event : events(whole(*exchange).body)) {
        if (event != "[DONE]") text += json::parse(event)["choices"][0]["text"].get<std::string>();
      }
    } else {
      text = whole(*exchange).value()["choices"][0]["text"];
    }
    CHECK(text == "\u00e9\ufffd");
  }
}

TEST_CASE("a request that is given up, late, or of a server that ends is cancelled") {
  Server server({.seconds = 0.05});
  auto exchange = server.post("/v1/completions", R"({"prompt":"x"})");
  auto request = server.service.requests[0];
  CHECK(request.wanted());
  exchange.reset();
  CHECK_FALSE(request.wanted());

  for (const bool late : {true, false}) {
    for (const bool streams : {false, true}) {
      server.service.requests.clear();
      exchange = server.post("/v1/completions",
                             streams ? R"({"prompt":"x","stream":true})" : R"({"prompt":"x"})");
      request = server.service.requests[0];
      CHECK(request.wanted());
      if (late) {
        std::this_thread::sleep_for(milliseconds(60));
        CHECK_FALSE(request.wanted());
      }
      request.done(Finish::cancelled, 0);
      const auto answer = whole(*exchange);
      CHECK(answer.status == (streams ? 200 : late ? 504 : 503));
      const auto body = streams ? json::parse(events(answer.body).at(0)) : answer.value();
      CHECK_THAT(body["error"]["message"].get<std::string>(),
                 Contains(late ? "took longer than 0.05 s" : "the server ends"));
      CHECK(body["error"]["type"] == "server_error");
    }
  }
}

TEST_CASE("a request without a time limit is never late") {
  const Server server({.seconds = kInfinity});
  const auto exchange = server.post("/v1/completions", R"({"prompt":"x"})");
  CHECK(server.service.requests[0].wanted());
}

TEST_CASE("special tokens are no part of an answer, unless they are asked for or end it") {
  Server server({.stops = {"END"}});
  const auto hidden = [&](const std::string& more) {
    const auto exchange = server.post("/v1/completions", R"({"prompt":"x")" + more + "}");
    return server.service.requests.back().hidden;
  };
  CHECK(hidden("") == std::set<int64_t>{0, 1, '#'});
  CHECK(hidden(R"(,"skip_special_tokens":true)") == std::set<int64_t>{0, 1, '#'});
  CHECK(hidden(R"(,"skip_special_tokens":false)").empty());
  CHECK(hidden(R"(,"stop":"#")") == std::set<int64_t>{0, 1});
}

TEST_CASE("a request that is wrong is refused with its parameter, and takes no slot") {
  Server server;
  const auto text = [&](const std::string& options) {
    return refused(server, "/v1/completions", R"({"prompt":"x")" + options + "}");
  };
  const auto chat = [&](const std::string& messages) {
    return refused(server, "/v1/chat/completions", R"({"messages":)" + messages + "}");
  };
  const std::vector<std::tuple<json, std::string, json>> cases = {
      {text(R"(,"temperature":-1)"), "temperature must be at least 0", "temperature"},
      {text(R"(,"top_p":1.5)"), "top_p must be above 0 and at most 1, but got 1.5", "top_p"},
      {text(R"(,"temperature":"hot")"), "temperature must be a number", "temperature"},
      {text(R"(,"n":0)"), "n must be an integer from 1 to 128, but got 0", "n"},
      {text(R"(,"n":101)"), "at most 100 texts, but asks for 101", "n"},
      {text(R"(,"stream":1)"), "stream must be true or false", "stream"},
      {text(R"(,"stream_options":{})"), "needs \"stream\": true", "stream_options"},
      {text(R"(,"stop":[""])"), "must not be empty", "stop"},
      {text(R"(,"stop":[1])"), "a text or a list of texts", "stop"},
      {text(R"(,"logit_bias":{"5":1})"), "logit_bias is not supported", "logit_bias"},
      {text(R"(,"best_of":3)"), "best_of must equal n", "best_of"},
      {text(R"(,"max_tokns":3)"), "the option \"max_tokns\" is unknown", "max_tokns"},
      {text(R"(,"max_tokens":64)"), "at most 64 tokens, but the prompt has 1 and 64 more",
       "prompt"},
      {refused(server, "/v1/completions", R"({"prompt":[65,128]})"), "0 to 127, but got 128",
       "prompt"},
      {refused(server, "/v1/completions", R"({"prompt":{}})"), "a list of such lists", "prompt"},
      {refused(server, "/v1/completions", "[1]"), "must be a JSON object", nullptr},
      {refused(server, "/v1/completions", "{\"prompt\":"), "must be JSON", nullptr},
      {chat("[]"), "at least one message", "messages"},
      {chat(R"([{"role":"user","content":[{"type":"image_url"}]}])"), "parts", "messages"},
      {chat(R"([{"content":"x"}])"), "a text \"role\"", "messages"},
      {chat(R"([{"role":"user","content":"fail"}])"), "line 7 fails", "messages"},
      {refused(server, "/v1/chat/completions",
               R"({"messages":[{"role":"user","content":"x"}],"tool_choice":"required"})"),
       "not constrained", "tool_choice"},
  };
  for (const auto& [error, message, parameter] : cases) {
    INFO(error);
    CHECK_THAT(error["message"].get<std::string>(), Contains(message));
    CHECK(error["param"] == parameter);
    CHECK(error["type"] == "invalid_request_error");
  }
  // Options without an effect on the text, and values that are the defaults.
  CHECK(server.service.requests.empty());
  const auto endless = server.post("/v1/completions", R"({"prompt":"x","ignore_eos":true})");
  CHECK(server.service.requests.back().ends.empty());
  const auto good = server.post("/v1/completions", R"({"prompt":"x","user":"u","presence_penalty":0,
      "frequency_penalty":0.0,"logprobs":null,"suffix":null,"best_of":1,"max_tokens":63})");
  CHECK(server.service.requests.size() == 2);
}

TEST_CASE("models are listed, and what does not exist is named") {
  Server server;
  const auto call = [&](const std::string& method, const std::string& path,
                        const std::string& type = "application/json") {
    return whole(
        *server.api->open({.method = method, .path = path, .content_type = type, .body = "{}"}));
  };
  CHECK(call("GET", "/v1/models").value()["data"][0]["id"] == "m");
  CHECK(call("GET", "/v1/models/m").value()["object"] == "model");
  CHECK(call("GET", "/health").status == 200);
  CHECK(call("GET", "/v1/models/other").status == 404);
  CHECK(call("GET", "/v1/completions").status == 405);
  CHECK(call("POST", "/v1/completions", "text/plain").status == 415);
  const auto other = whole(*server.post("/v1/completions", R"({"model":"gpt-4","prompt":"x"})"));
  CHECK(other.status == 404);
  CHECK(other.value()["error"]["code"] == "model_not_found");
  CHECK_THAT(other.body, Contains("this server has \\\"m\\\""));
}

TEST_CASE("a request that finds too many others is told to try again") {
  Server server;
  server.service.most = 2;
  const auto first = server.post("/v1/completions", R"({"prompt":["x","y"]})");
  const auto second = server.post("/v1/completions", R"({"prompt":"z"})");
  const auto head = second->head(milliseconds(0));
  REQUIRE(head);
  CHECK(head->status == 503);
  CHECK(head->headers.at("Retry-After") == "1");
  server.service.answer();
  CHECK(whole(*first).status == 200);
  const auto again = server.post("/v1/completions", R"({"prompt":"z"})");
  server.service.answer();
  CHECK(whole(*again).status == 200);
}

}  // namespace
}  // namespace perigee::train
