#include "text/reply.h"

#include <catch2/catch.hpp>
#include <string>

#include "base/text/utf8.h"

using namespace perigee;

namespace {

// Gives the tokens one after the other and returns the pieces, the last of them by end().
std::vector<std::string> pieces(const text::Tokenizer& tokenizer, const std::string& bytes,
                                const std::vector<std::string>& stops = {}) {
  text::Reply reply(tokenizer, {}, stops);
  std::vector<std::string> result;
  for (const unsigned char c : bytes) result.push_back(reply.add(c));
  result.push_back(reply.end());
  return result;
}

std::string joined(const std::vector<std::string>& pieces) {
  std::string text;
  for (const auto& piece : pieces) text += piece;
  return text;
}

// Tokens are words; as in SentencePiece, a text's first word has no space before it.
class Words : public text::Tokenizer {
 public:
  int64_t vocab() const override { return 26; }
  std::vector<int64_t> encode(std::string_view) const override { return {}; }
  std::string decode(const std::vector<int64_t>& tokens) const override {
    std::string text;
    for (const auto token : tokens) {
      if (!text.empty()) text += ' ';
      text += static_cast<char>('a' + token);
    }
    return text;
  }
};

}  // namespace

TEST_CASE("a character of several tokens is given when it is complete") {
  const auto bytes = text::make_tokenizer("bytes");
  const auto got = pieces(*bytes, "a\xc3\xa9z\xf0\x9f\x98\x80!");
  CHECK(got == std::vector<std::string>{"a", "", "\xc3\xa9", "z", "", "", "", "\xf0\x9f\x98\x80",
                                        "!", ""});
}

TEST_CASE("tokens that begin one character and end another never break one") {
  // As a byte-level vocabulary: what is of no character becomes U+FFFD.
  class Straddling : public text::Tokenizer {
   public:
    int64_t vocab() const override { return 3; }
    std::vector<int64_t> encode(std::string_view) const override { return {}; }
    std::string decode(const std::vector<int64_t>& tokens) const override {
      const std::string pieces[] = {"\xc3", "\xa9\xc3", "\xa9"};
      Utf8Stream stream;
      std::string text;
      for (const auto token : tokens) text += stream.add(pieces[token]);
      return text + stream.end();
    }
  };
  const Straddling tokenizer;
  text::Reply reply(tokenizer, {});
  std::string given = reply.add(0);
  CHECK(given.empty());
  for (int i = 1; i <= 30; ++i) {
    const auto piece = reply.add(1);
    CHECK(piece == "\xc3\xa9");
    given += piece;
  }
  given += reply.add(2);
  given += reply.end();
  std::string expected;
  for (int i = 0; i < 31; ++i) expected += "\xc3\xa9";
  CHECK(given == expected);
}

TEST_CASE("bytes that are of no character delay the text by a few tokens only") {
  const auto bytes = text::make_tokenizer("bytes");
  const auto got = pieces(*bytes, std::string(9, '\x80') + "ab");
  CHECK_THAT(joined(got), Catch::EndsWith("ab"));
  CHECK(joined({got.begin(), got.begin() + 5}).size() > 0);
}

TEST_CASE("a stop string ends the text before it, wherever tokens cut it") {
  const auto bytes = text::make_tokenizer("bytes");
  const auto got = pieces(*bytes, "one.\n\nTwo", {"\n\n", "END"});
  CHECK(joined(got) == "one.");
  text::Reply reply(*bytes, {}, {"\n\n"});
  CHECK(reply.add('x') == "x");
  CHECK(reply.add('\n') == "");    // may begin the stop string
  CHECK(reply.add('y') == "\ny");  // did not
  CHECK_FALSE(reply.stopped());
  reply.add('\n');
  reply.add('\n');
  CHECK(reply.stopped());
  CHECK(reply.add('z') == "");
  CHECK(reply.end() == "");
  // At the end of the text it is given.
  CHECK(joined(pieces(*bytes, "ab\n", {"\n\n"})) == "ab\n");
}

TEST_CASE("the first word of a reply has the space that the text before it asks for") {
  const Words words;
  const std::vector<int64_t> before = {0, 1};
  text::Reply reply(words, before);
  CHECK(reply.add(2) == " c");
  CHECK(reply.add(3) == " d");
  text::Reply first(words, {});
  CHECK(first.add(2) == "c");
  std::string text = "c";
  for (int64_t i = 0; i < 30; ++i) text += first.add(i % 26);
  std::string wanted = "c";
  for (int64_t i = 0; i < 30; ++i) wanted += std::string(" ") + static_cast<char>('a' + i % 26);
  CHECK(text == wanted);
}
