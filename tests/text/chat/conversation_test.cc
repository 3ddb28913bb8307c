// Conversations as tokens: templates of folders, answers, errors with their lines, samples.
#include "text/chat/conversation.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "base/files/file.h"
#include "tests/support/temporary_folder.h"
#include "text/chat/samples.h"

using namespace perigee;
using nlohmann::ordered_json;
using test::error_of;
using text::ChatTemplate;

namespace {

const std::string kChat =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";
const std::string kMarked =
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{{ eos_token }}"
    "{% endif %}{% endfor %}";

ordered_json conversation(std::initializer_list<std::pair<const char*, const char*>> turns) {
  auto messages = ordered_json::array();
  for (const auto& [role, content] : turns) {
    messages.push_back({{"role", role}, {"content", content}});
  }
  return {{"messages", messages}};
}

// A folder with a tokenizer.json of the characters in `letters`, "\u2581" and the token "</s>".
// `parts`: its parts that are not null.
std::string add_tokenizer(const test::Folder& folder, const std::string& letters,
                          const ordered_json& parts = ordered_json::object()) {
  ordered_json vocab;
  for (const char c : letters) vocab[std::string(1, c)] = vocab.size();
  vocab["\u2581"] = vocab.size();
  const ordered_json end = {{"id", vocab.size()}, {"content", "</s>"}, {"special", true}};
  ordered_json file = {
      {"version", "1.0"},
      {"added_tokens", {end}},
      {"normalizer", nullptr},
      {"pre_tokenizer", nullptr},
      {"decoder", {{"type", "Fuse"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", ordered_json::array()}}}};
  file.update(parts);
  folder.add("tokenizer_config.json",
             R"({"eos_token": {"content": "</s>", "special": true}, "bos_token": null})");
  return folder.add("tokenizer.json", file.dump());
}

// Returns the text of each answer.
std::vector<std::string> answers(const text::Tokenizer& tokenizer, const text::Document& c) {
  std::vector<std::string> texts;
  for (const auto& span : c.answers) {
    texts.push_back(tokenizer.decode({c.ids.begin() + span.begin, c.ids.begin() + span.end}));
  }
  return texts;
}

}  // namespace

TEST_CASE("answers of several turns are found by marks and by rendering parts") {
  const test::Folder folder;
  const auto path = add_tokenizer(folder, "abcdefghijklmnopqrstuvwxyz <|>/.");
  const auto tokenizer = text::make_tokenizer(path);
  const auto chat = conversation({{"system", "be kind"},
                                  {"user", "a b"},
                                  {"assistant", "first."},
                                  {"user", "and"},
                                  {"assistant", "second."},
                                  {"user", "so"}});
  for (const auto& source : {kChat, kMarked}) {
    const ChatTemplate from(folder.add("t.jinja", source), path);
    CHECK(from.marks_answers(chat) == (source == kMarked));
    const auto encoded = text::encode_conversation(from, *tokenizer, chat);
    CHECK(tokenizer->decode(encoded.ids) ==
          "<|system|>be kind</s><|user|>a b</s><|assistant|>first.</s><|user|>and</s><|assistant|>"
          "second.</s><|user|>so</s>");
    CHECK(answers(*tokenizer, encoded) == std::vector<std::string>{"first.</s>", "second.</s>"});
    const auto end = tokenizer->encode("</s>");
    REQUIRE(end.size() == 1);
    CHECK(encoded.ids[encoded.answers[0].end - 1] == end[0]);
  }
}

TEST_CASE("a text after an added token has the ids that it has in the whole conversation") {
  const test::Folder folder;
  const auto chat = conversation(
      {{"user", "a b"}, {"assistant", "first."}, {"user", "and"}, {"assistant", "second."}});
  for (const auto* parts : {R"({"normalizer": {"type": "Sequence", "normalizers": [
             {"type": "Prepend", "prepend": "\u2581"},
             {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}})",
                            R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581",
                              "prepend_scheme": "always"}})"}) {
    INFO(parts);
    const auto path = add_tokenizer(folder, "abcdefghijklmnopqrstuvwxyz<|>/.",
                                    ordered_json::parse(parts));
    const auto tokenizer = text::make_tokenizer(path);
    for (const auto& source : {kChat, kMarked}) {
      const ChatTemplate from(folder.add("t.jinja", source), path);
      const auto encoded = text::encode_conversation(from, *tokenizer, chat);
      CHECK(encoded.ids == tokenizer->encode(from.render(chat, false).text));
      CHECK(answers(*tokenizer, encoded) == std::vector<std::string>{"first.</s>", "second.</s>"});
    }
  }
}

TEST_CASE("answers that later messages change are found") {
  const ChatTemplate chat("tests/text/jinja/templates/qwen3.jinja", "bytes");
  const auto tokenizer = text::make_tokenizer("bytes");
  auto turns = conversation({{"user", "q"},
                             {"assistant", "<think>\nt\n</think>\n\na \xee\x80\x80"},
                             {"user", "r"},
                             {"assistant", ""},
                             {"tool", "3"},
                             {"assistant", "<think>\nu\n</think>\n\nb"}});
  turns["messages"][3]["content"] = nullptr;
  turns["messages"][3]["tool_calls"] = {{{"name", "f"}, {"arguments", {{"x", 1}}}}};
  const auto encoded = text::encode_conversation(chat, *tokenizer, turns);
  CHECK(answers(*tokenizer, encoded) ==
        std::vector<std::string>{"a \xee\x80\x80<|im_end|>\n",
                                 "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n"
                                 "</tool_call><|im_end|>\n",
                                 "<think>\nu\n</think>\n\nb<|im_end|>\n"});
}

TEST_CASE("calls of tools are answers, and their results are not") {
  const test::Folder folder;
  const std::string source =
      "{{ tools | length }}{% for m in messages %}[{{ m.role }}]{% if m.tool_calls %}"
      "{{ m.tool_calls[0].function | tojson }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}[assistant]{% endif %}";
  const ChatTemplate chat(folder.add("t.jinja", source), "bytes");
  const auto tokenizer = text::make_tokenizer("bytes");
  auto called = conversation({{"user", "?"}});
  called["tools"] = {{{"name", "f"}}};
  called["messages"].push_back(
      {{"role", "assistant"}, {"tool_calls", {{{"function", {{"name", "f"}, {"x", 1}}}}}}});
  called["messages"].push_back({{"role", "tool"}, {"content", "2"}});
  called["messages"].push_back({{"role", "assistant"}, {"content", "two"}});
  const auto encoded = text::encode_conversation(chat, *tokenizer, called);
  CHECK(answers(*tokenizer, encoded) ==
        std::vector<std::string>{R"({"name": "f", "x": 1})", "two"});
}

TEST_CASE("a template is that of the tokenizer's folder unless a file is given") {
  const test::Folder folder;
  const auto path = folder.at("tokenizer.json");
  const auto rendered = [&](const std::string& file = "", bool tools = false) {
    auto chat = conversation({{"user", "u"}});
    if (tools) chat["tools"] = {1};
    return ChatTemplate(file, path).render(chat, true).text;
  };
  CHECK_THAT(error_of([&] { rendered(); }),
             Catch::StartsWith("[template] a chat template must be given, or be in the tokenizer's "
                               "folder") &&
                 Catch::EndsWith("but " + folder.path() + " has none"));
  folder.add("tokenizer_config.json", R"({"bos_token": "<b>", "chat_template":
    "{{ bos_token }}{{ add_generation_prompt }}{{ unk_token is defined }}"})");
  CHECK(rendered() == "<b>TrueFalse");
  folder.add("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "T"},
    {"name": "default", "template": "D"}, {"name": "rag", "template": "{{"}]})");
  CHECK(rendered() == "D");
  CHECK(rendered("", true) == "T");
  folder.add("chat_template.jinja", "J");
  CHECK(rendered() == "J");
  CHECK(rendered(folder.add("own.jinja", "{{ messages[0].role }}")) == "user");
  CHECK_THAT(error_of([&] { rendered(folder.add("own.jinja", "\n{{ 1 +")); }),
             Catch::StartsWith("[template] " + folder.at("own.jinja") + ":2: "));
  CHECK_THAT(error_of([&] { rendered(folder.at("no.jinja")); }), Catch::Contains("No such file"));
  folder.add("tokenizer_config.json", "[]");
  CHECK_THAT(error_of([&] { rendered(); }), Catch::EndsWith("must be a JSON object, but is not"));
}

TEST_CASE("an answer ends at a token, or at a text of which the tokenizer makes several") {
  const test::Folder folder;
  const auto path = add_tokenizer(folder, "abcdefghijklmnopqrstuvwxyz<|>/.!? \n");
  const auto ends = [&](const std::string& end, const std::string& tokenizer) {
    const auto source = "{% for m in messages %}{{ m.content }}" + end + "{% endfor %}";
    const ChatTemplate chat(folder.add("t.jinja", source), path);
    return text::answer_ends(chat, *text::make_tokenizer(tokenizer));
  };
  using Tokens = std::set<int64_t>;
  using Texts = std::vector<std::string>;
  const auto end = text::make_tokenizer(path)->token_id("</s>");
  for (const auto* mark : {"</s>", "</s>\n", " </s><|user|>"}) {
    CHECK(ends(mark, path).tokens == Tokens{end});
    CHECK(ends(mark, path).texts.empty());
  }
  CHECK(ends(" <|end|>\n", path).tokens == Tokens{end});  // eos_token
  CHECK(ends(" <|end|>\n", path).texts == Texts{"<|end|>"});
  CHECK(ends("</s>\n", "bytes").tokens.empty());
  CHECK(ends("</s>\n", "bytes").texts == Texts{"</s>"});
  CHECK(ends(".", "bytes").tokens == Tokens{'.'});
  CHECK(ends("", "bytes").tokens.empty());
  CHECK(ends("", "bytes").texts.empty());
}

TEST_CASE("a tokenizer that reads special tokens as letters is refused") {
  // As SentencePiece, which has ids for them.
  class Letters : public text::Tokenizer {
   public:
    int64_t vocab() const override { return 257; }
    std::vector<int64_t> encode(std::string_view text) const override {
      return {text.begin(), text.end()};
    }
    std::string decode(const std::vector<int64_t>& tokens) const override {
      return {tokens.begin(), tokens.end()};
    }
    int64_t token_id(std::string_view token) const override { return token == "</s>" ? 256 : -1; }
  };
  const test::Folder folder;
  const ChatTemplate chat(folder.add("chat.jinja", kChat), add_tokenizer(folder, "abc"), 0);
  const auto refused = Catch::Contains("reads \"</s>\" as letters: name");
  CHECK_THROWS_WITH(
      text::encode_conversation(chat, Letters(), conversation({{"user", "a"}, {"assistant", "b"}})),
      refused);
  CHECK_THROWS_WITH(text::answer_ends(chat, Letters()), refused);
}

TEST_CASE("a broken conversation is named with its file and line") {
  const test::Folder folder;
  const ChatTemplate chat(folder.add("t.jinja", kChat), "bytes");
  const auto tokenizer = text::make_tokenizer("bytes");
  const std::string good = conversation({{"user", "q"}, {"assistant", "a"}}).dump();
  const auto error = [&](const std::string& line) {
    const auto file = folder.add("c.jsonl", good + "\n\n" + good + "\n" + line + "\n" + line);
    int64_t taken = 0;
    const auto message = error_of([&] {
      text::encode_conversations(file, chat, *tokenizer, [&](text::Document&&) { ++taken; });
    });
    CHECK_THAT(message, Catch::StartsWith("[data] " + file + ":4: "));
    CHECK(taken == 0);
    return message.substr(("[data] " + file + ":4: ").size());
  };
  CHECK(error("{\"messages\": [}") == "a line must be JSON, but its text from byte 15 on is not");
  CHECK_THAT(error("[]"), Catch::EndsWith("but is no object"));
  CHECK_THAT(error("{}"), Catch::EndsWith("but has no list \"messages\""));
  CHECK_THAT(error("{\"messages\": []}"), Catch::EndsWith("but \"messages\" is empty"));
  CHECK_THAT(error("{\"messages\": [{\"content\": \"\"}]}"), Catch::EndsWith("has no \"role\""));
  CHECK(error(conversation({{"user", "q"}}).dump()) ==
        "a conversation must have an answer of the model, but has none");
  CHECK(error("{\"messages\": [{\"role\": \"\xff\"}]}") ==
        "a line must be JSON, but its text from byte 25 on is not");
  CHECK_THAT(error(std::string(1000, '[')), Catch::Contains("nested"));
}

TEST_CASE("a template that fails, or changes earlier answers, is named with the line of the data") {
  const test::Folder folder;
  const auto tokenizer = text::make_tokenizer("bytes");
  const auto error = [&](const std::string& source) {
    const ChatTemplate chat(folder.add("t.jinja", source), "bytes");
    const auto two = conversation(
        {{"user", "q"}, {"assistant", "a"}, {"user", "r"}, {"assistant", "b"}});
    const auto file = folder.add("c.jsonl", two.dump());
    return error_of([&] { text::encode_conversations(file, chat, *tokenizer, [](auto&&) {}); });
  };
  CHECK(error("a\n{{ messages[7].role }}") ==
        "[data] " + folder.at("c.jsonl") + ":1: [template] " + folder.at("t.jinja") +
            ":2: an item of a list must be defined, but is not");
  CHECK_THAT(error("{{ messages | length }}" + kChat),
             Catch::Contains("message 2 changes with those around it: mark answers in the template "
                             "by {% generation %}"));
}

TEST_CASE("samples have labels where the next token is of an answer") {
  const test::Folder folder;
  const auto rows = [&](text::Samples& samples) {
    const auto path = folder.at("s.safetensors");
    samples.write(path);
    const auto file = read_file(path, "test");
    uint64_t length = 0;
    std::memcpy(&length, file.data(), 8);
    const auto header = ordered_json::parse(file.substr(8, length));
    std::map<std::string, std::vector<int64_t>> tensors;
    for (const auto& [name, tensor] : header.items()) {
      CHECK(tensor["dtype"] == "I64");
      const auto begin = tensor["data_offsets"][0].get<size_t>();
      const auto end = tensor["data_offsets"][1].get<size_t>();
      tensors[name].resize((end - begin) / 8);
      CHECK(tensor["shape"] ==
            ordered_json({samples.size(), tensors[name].size() / samples.size()}));
      std::memcpy(tensors[name].data(), file.data() + 8 + length + begin, end - begin);
    }
    return tensors;
  };
  constexpr int64_t kNot = text::kIgnored;
  text::Samples samples(4);
  samples.add({.ids = {1, 2, 3}, .answers = {{1, 3}}});
  samples.add({.ids = {1, 2, 3, 4, 5, 6, 7}, .answers = {{0, 2}, {4, 6}}});
  samples.add({.ids = {1, 2, 3, 4, 5, 6}, .answers = {{5, 6}}});  // beyond five tokens
  samples.add({.ids = {9}, .answers = {{0, 1}}});
  CHECK(samples.size() == 2);
  CHECK(samples.cut() == 1);
  CHECK(samples.left_out() == 2);
  CHECK(samples.learned() == 4);
  const auto tensors = rows(samples);
  CHECK(tensors.at("tokens") == std::vector<int64_t>{1, 2, 3, 0, 1, 2, 3, 4});
  CHECK(tensors.at("labels") == std::vector<int64_t>{2, 3, kNot, kNot, 2, kNot, kNot, 5});
  CHECK_THAT(error_of([&] { text::Samples(4).write(folder.at("none")); }),
             Catch::EndsWith("an answer within 5 tokens, but none has"));
}
