// Requests of OpenAI's API: "c" or "t" (chat or text), and the body.
#include "tests/fuzz/target.h"
#include "train/serve/openai_requests.h"

using namespace perigee;

namespace {

// A service whose tokens are bytes.
class Bytes : public train::TextService {
 public:
  int64_t context() const override { return 64; }
  int64_t vocab() const override { return 256; }
  int64_t capacity() const override { return 8; }
  std::vector<int64_t> encode(const std::string& text) const override {
    std::vector<int64_t> ids;
    for (const unsigned char byte : text) ids.push_back(byte);
    return ids;
  }
  std::string decode(const std::vector<int64_t>& tokens) const override {
    return {tokens.begin(), tokens.end()};
  }
  std::vector<int64_t> encode_chat(const nlohmann::ordered_json& conversation) const override {
    return encode(conversation["messages"].back()["content"].get<std::string>());
  }
  const std::set<int64_t>& text_ends() const override { return ends_; }
  const std::set<int64_t>& answer_ends() const override { return ends_; }
  const std::vector<std::string>& answer_stops() const override { return stops_; }
  const std::set<int64_t>& special_tokens() const override { return ends_; }
  bool add(std::vector<train::TextRequest>) override { return false; }

 private:
  std::set<int64_t> ends_ = {0};
  std::vector<std::string> stops_ = {"<end>"};
};

}  // namespace

PERIGEE_FUZZ_TARGET(requests) {
  if (input.empty()) return;
  const Bytes service;
  try {
    const auto asked = train::read_openai_request(service, {.model = "m"}, input[0] == 'c',
                                                  input.substr(1), 1);
    fuzz::require(!asked.requests.empty() && std::ssize(asked.requests) <= service.capacity(),
                  "a request without texts, or with too many");
    fuzz::require(asked.before.size() == asked.requests.size(), "texts without a beginning");
    for (const auto& request : asked.requests) {
      train::check(request.draw);
      fuzz::require(!request.prompt.empty() && request.most >= 0 &&
                        std::ssize(request.prompt) + request.most <= service.context(),
                    "a text that does not fit");
    }
  } catch (const train::ApiError& error) {
    fuzz::require(error.status >= 400 && error.status < 500 && !error.message.empty(),
                  "an error without a sentence");
  }
}
