// Files of tokenizers: errors, and small ones whose ids are known.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/support/temporary_folder.h"
#include "text/tokenizer.h"

using namespace perigee;
using nlohmann::json;
using test::error_of;
using Ids = std::vector<int64_t>;

namespace {

json small() {
  return json::parse(R"({"version": "1.0", "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": null,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "abb": 3}, "merges": ["a b", ["ab", "b"]]}})");
}

class Files {
 public:
  std::unique_ptr<text::Tokenizer> load(const json& file) const {
    return text::make_tokenizer(folder_.add("t.json", file.dump()));
  }
  // Returns the message of the error, without the file's name.
  std::string error(const std::string& content) const {
    const auto path = folder_.add("t.json", content);
    const auto text = error_of([&] { text::make_tokenizer(path)->encode("abc \xff"); });
    const auto begin = text.find(path);
    return begin == text.npos ? text : text.substr(0, begin) + text.substr(begin + path.size());
  }
  std::string error_in(const json& file) const { return error(file.dump()); }

 private:
  test::Folder folder_;
};

}  // namespace

TEST_CASE("a small tokenizer.json gives the ids of its merges") {
  const Files files;
  auto file = small();
  const auto tokenizer = files.load(file);
  CHECK(tokenizer->vocab() == 4);
  CHECK(tokenizer->encode("abb ba\nab") == Ids{3, 1, 0, 2});
  CHECK(tokenizer->encode("").empty());
  CHECK(tokenizer->encode("  ").empty());
  CHECK(tokenizer->decode({3, 1, 99, -1}) == "abb b");
  file["added_tokens"] = json::parse(R"([{"id": 4, "content": "<x>", "special": true}])");
  CHECK(files.load(file)->vocab() == 5);
  CHECK(files.load(file)->encode("a<x>b") == Ids{0, 4, 1});
  file["model"].erase("type");  // files of early versions
  CHECK(files.load(file)->encode("abb") == Ids{3});
}

TEST_CASE("texts are cut only where that changes nothing") {
  const Files files;
  auto file = small();
  const std::string text = "abb abb";
  CHECK(files.load(file)->last_cut(text, 7) == 4);
  CHECK(files.load(file)->last_cut(text, 3) == 3);
  CHECK(files.load(file)->last_cut(text, 2) == 0);
  file["added_tokens"] = json::parse(R"([{"id": 4, "content": "b a", "special": true}])");
  CHECK(files.load(file)->last_cut(text, 7) == 0);
  file = small();
  file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "b "}}}, {"content", "b"}};
  CHECK(files.load(file)->last_cut(text, 7) == 0);
  file = small();
  file["pre_tokenizer"] = json::parse(
      R"({"type": "Split", "pattern": {"Regex": "(?<= )a|b+| "}, "behavior": "Isolated"})");
  CHECK(files.load(file)->last_cut(text, 7) == 0);
  // The last white space before a letter is a match of its own only where the letter is seen.
  file["pre_tokenizer"]["pattern"]["Regex"] = "\\w+|\\s+(?!\\S)|\\s+";
  CHECK(files.load(file)->last_cut("ab  ab", 5) == 2);
  file["pre_tokenizer"] = nullptr;
  CHECK(files.load(file)->last_cut("bba", 3) == 2);           // no token has "ba" or "bb" ...
  CHECK(files.load(file)->last_cut("abb", 3) == 0);           // ... but "abb" has "bb"
  file["model"]["vocab"]["c"] = file["model"]["vocab"]["a"];  // merges of "a" are those of "c"
  CHECK(files.load(file)->last_cut("bba", 3) == 0);
}

TEST_CASE("a damaged or unknown tokenizer.json is refused with its place") {
  const Files files;
  CHECK_THAT(files.error("{\"version\": "),
             Catch::StartsWith("[tokenizer]  must be JSON, but: parse error at line 1, column 13"));
  CHECK_THAT(files.error(std::string(500, '{')), Catch::Contains("[tokenizer]"));
  CHECK(files.error("{}") == "[tokenizer] : model must be given, but is not");
  const auto change = [&](const char* pointer, const json& value) {
    auto file = small();
    file[json::json_pointer(pointer)] = value;
    return files.error_in(file);
  };
  CHECK(change("/version", "2.0") == "[tokenizer] : version must be \"1.0\", but is \"2.0\"");
  CHECK(change("/model/type", "Foo") ==
        "[tokenizer] : model.type must be one of: BPE Unigram WordLevel WordPiece, but is \"Foo\"");
  CHECK_THAT(change("/pre_tokenizer/type", "UnicodeScripts"),
             Catch::Contains(": pre_tokenizer.type must be one of: BertPreTokenizer") &&
                 Catch::EndsWith("but is \"UnicodeScripts\""));
  CHECK_THAT(change("/normalizer", {{"type", "Magic"}}),
             Catch::Contains("normalizer.type must be one of") && Catch::EndsWith("\"Magic\""));
  CHECK_THAT(change("/decoder", {{"type", "CTC"}}),
             Catch::Contains("decoder.type must be one of") && Catch::EndsWith("\"CTC\""));
  CHECK(change("/model/merges/1", "ab c") ==
        "[tokenizer] : model.merges: [1] must be of tokens in model.vocab, but \"c\" is not there");
  CHECK(
      change("/model/merges/1", "b a") ==
      "[tokenizer] : model.merges: [1] must be of tokens in model.vocab, but \"ba\" is not there");
  CHECK(change("/model/merges/1", "abb") ==
        "[tokenizer] : model.merges: [1] must be two tokens with a space between them, but is "
        "\"abb\"");
  CHECK_THAT(change("/model/vocab/a", -1),
             Catch::Contains("model.vocab must be ids from 0 to 65599, but \"a\" has -1"));
  CHECK_THAT(change("/model/vocab/a", 1 << 24), Catch::Contains("\"a\" has 16777216"));
  CHECK_THAT(change("/model/vocab", 3),
             Catch::Contains("model.vocab must be an object, but is number"));
  CHECK_THAT(change("/model/dropout", 0.1),
             Catch::Contains("model.dropout must be 0") && Catch::EndsWith("but is 0.1"));
  CHECK_THAT(
      change("/model", json::parse(R"({"type": "Unigram", "unk_id": 7, "vocab": [["a", -1]]})")),
      Catch::Contains("model.unk_id must be below 1, the number of tokens, but is 7"));
  CHECK_THAT(change("/model", json::parse(R"({"type": "Unigram", "vocab": [["a", -1]]})")),
             Catch::Contains("model.unk_id must be given for texts with characters of no token"));
  CHECK_THAT(change("/model", json::parse(R"({"type": "WordPiece", "vocab": {"a": 0}})")),
             Catch::Contains("model.unk_token must be a token of model.vocab, but is \"[UNK]\""));
  const auto regex = [&](const char* text) {
    return change("/pre_tokenizer",
                  {{"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", text}}}});
  };
  for (const char* text : {"(a", "a)", "[a", "[a[b]]", "[a&&b]", "\\1", "(?m)a", "\\X", "*", "a\\",
                           "[b-a]", "\\p{Foo}", "a(?i)b", "(?<n>a)"}) {
    CAPTURE(text);
    CHECK_THAT(regex(text),
               Catch::StartsWith(
                   "[tokenizer] : pre_tokenizer.pattern.Regex must be a regular expression that"));
  }
  CHECK_THAT(regex("(a*)*(b*)*(c*)*\\xff?(?!.)x"), Catch::StartsWith("[tokenizer]"));
}

TEST_CASE("a file that vanishes, a folder and an empty file are refused") {
  const test::Folder folder;
  CHECK_THAT(
      error_of([&] { text::make_tokenizer(folder.at("none.json")); }),
      Catch::StartsWith("[data] cannot read \"" + folder.at("none.json") + "\": No such file"));
  CHECK_THAT(error_of([&] { text::make_tokenizer(folder.path()); }),
             Catch::Contains("Is a directory"));
  CHECK_THAT(error_of([&] { text::make_tokenizer(folder.add("empty", "")); }),
             Catch::StartsWith("[data] tokenizer must be \"bytes\", a tokenizer.json or a "
                               "SentencePiece model, but "));
}
