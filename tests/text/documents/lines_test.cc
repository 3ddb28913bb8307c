// Documents of JSON lines, templates of fields, and the tokens that end documents.
#include "text/documents/lines.h"

#include <catch2/catch.hpp>

#include "base/fail.h"
#include "tests/support/temporary_folder.h"
#include "text/documents/end_of_text.h"
#include "text/documents/line_template.h"

using namespace perigee;
using nlohmann::ordered_json;
using test::error_of;
using test::Folder;
using text::LineTemplate;

namespace {

// Encodes the field "n", a number, as one token.
text::Document number(const ordered_json& line) {
  if (!line.contains("n")) fail("data", "a line must have n");
  return {.ids = {line["n"].get<int64_t>()}, .answers = {}};
}

std::vector<int64_t> numbers(const std::string& file, const text::LineOptions& options,
                             text::LinesRead* read = nullptr) {
  std::vector<int64_t> found;
  const auto result = text::encode_lines(file, options, number, [&](text::Document&& document) {
    found.push_back(document.ids.at(0));
  });
  CHECK(result.documents == int64_t(found.size()));
  if (read) *read = result;
  return found;
}

}  // namespace

TEST_CASE("lines become documents in their order, whatever the batches") {
  const Folder folder;
  std::string text;
  std::vector<int64_t> expected;
  for (int i = 0; i < 40'000; ++i) {
    text += ordered_json{{"n", i}, {"pad", std::string(i % 977, 'x')}}.dump();
    text += i % 7 == 0 ? "\r\n \n" : "\n";
    expected.push_back(i);
  }
  text.pop_back();  // the last line has no end
  CHECK(text.size() > 16'000'000);
  CHECK(numbers(folder.add("a.jsonl", text), {}) == expected);
  CHECK(numbers(folder.add("empty.jsonl", ""), {}).empty());
}

TEST_CASE("a broken line is an error with its file and line, or is skipped and counted") {
  const Folder folder;
  const auto file = folder.add("a.jsonl", "{\"n\": 1}\n\n{\"n\": \n{\"n\": 2}\n{}\n{\"n\": 3}\n");
  CHECK(error_of([&] { numbers(file, {}); }) ==
        "[data] " + file + ":3: a line must be JSON, but its text from byte 7 on is not");
  text::LinesRead read;
  CHECK(numbers(file, {.skip_broken = true}, &read) == std::vector<int64_t>{1, 2, 3});
  CHECK(read.skipped == 2);
  CHECK(read.first_skipped == "line 3: a line must be JSON, but its text from byte 7 on is not");
  const auto no_field = folder.add("b.jsonl", "{\"n\": 1}\n{}");
  CHECK(error_of([&] { numbers(no_field, {}); }) ==
        "[data] " + no_field + ":2: a line must have n");
  const auto large = folder.add("c.jsonl", "{\"n\": 1e999}");
  CHECK_THAT(error_of([&] { numbers(large, {}); }), Catch::Contains("too large"));
}

TEST_CASE("a template puts the fields of a line into a text") {
  const auto line = ordered_json::parse(
      R"({"title": "A {b}", "n": 1.5, "yes": true, "none": null, "list": [1], "": 7})");
  const auto render = [&](const std::string& text) { return LineTemplate(text).render(line); };
  CHECK(render("{title}") == "A {b}");
  CHECK(render("# {title}\n{n} {{{yes}}}") == "# A {b}\n1.5 {true}");
  CHECK(error_of([&] { render("{body}"); }) ==
        "[data] a line must have the field \"body\" of data.template, but has none");
  CHECK_THAT(error_of([&] { render("{none}"); }), Catch::EndsWith("a number, but is null"));
  CHECK_THAT(error_of([&] { render("{list}"); }), Catch::EndsWith("a number, but is a list"));
  CHECK(error_of([&] { LineTemplate("a {title"); }) ==
        "[data] a template of fields is \"{title} {body}\", with {{ and }} for braces, but \"a "
        "{title\" has a { without }");
  CHECK_THAT(error_of([&] { LineTemplate("a } b"); }), Catch::EndsWith("has a } without {"));
  CHECK_THAT(error_of([&] { LineTemplate("{}"); }), Catch::EndsWith("has a field without a name"));
  CHECK_THAT(error_of([&] { LineTemplate("text"); }), Catch::EndsWith("has no field"));
  CHECK_THAT(error_of([&] { LineTemplate("{title}").render(ordered_json::array()); }),
             Catch::Contains("must have the field \"title\""));
}

TEST_CASE("the end of a text is that of the tokenizer's folder, or a token that is known as such") {
  const Folder folder;
  const auto tokenizer_of = [&](const std::string& token) {
    const ordered_json file = {
        {"version", "1.0"},
        {"added_tokens", {{{"id", 1}, {"content", token}, {"special", true}}}},
        {"normalizer", nullptr},
        {"pre_tokenizer", nullptr},
        {"decoder", nullptr},
        {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}}}, {"merges", ordered_json::array()}}}};
    return folder.add("tokenizer.json", file.dump());
  };
  const auto end = [&](const std::string& file, const std::string& given = "") {
    return text::end_of_text(*text::make_tokenizer(file), file, given);
  };
  CHECK(end(tokenizer_of("</s>")) == 1);
  CHECK(text::make_tokenizer(folder.at("tokenizer.json"))->special_ids() ==
        std::vector<int64_t>{1});
  CHECK(end(tokenizer_of("<|endoftext|>"), "a") == 0);
  const auto other = tokenizer_of("<end>");
  CHECK_THAT(error_of([&] { end(other); }), Catch::Contains("name the token by data.end_of_text"));
  CHECK(end(other, "<end>") == 1);
  CHECK_THAT(error_of([&] { end(other, "<none>"); }),
             Catch::Contains("data.end_of_text must be a token of " + other +
                             ", but the tokenizer lacks \"<none>\""));
  folder.add("tokenizer_config.json", R"({"eos_token": {"content": "<end>"}})");
  CHECK(end(other) == 1);
  folder.add("tokenizer_config.json", R"({"eos_token": "<gone>"})");
  CHECK_THAT(error_of([&] { end(other); }), Catch::Contains("the tokenizer lacks \"<gone>\""));
  CHECK(end("bytes") == 0);
  CHECK(end("bytes", "\n") == 10);
  CHECK_THAT(error_of([&] { text::mask_token(*text::make_tokenizer(other), other); }),
             Catch::Contains("has none"));
  folder.add("tokenizer_config.json", R"({"mask_token": "<end>"})");
  CHECK(text::mask_token(*text::make_tokenizer(other), other) == 1);
}
