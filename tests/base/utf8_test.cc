// Text that comes in pieces, made valid UTF-8.
#include "base/text/utf8.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <random>

using perigee::Utf8Stream;

namespace {

const std::string kReplacement = "\xEF\xBF\xBD";

std::string in_pieces(const std::string& text, size_t size) {
  Utf8Stream stream;
  std::string all;
  for (size_t at = 0; at < text.size(); at += size) all += stream.add(text.substr(at, size));
  return all + stream.end();
}

}  // namespace

TEST_CASE("text in pieces is given once its characters are complete") {
  const std::string text = "aß€😀z";
  for (size_t size = 1; size <= text.size(); ++size) CHECK(in_pieces(text, size) == text);
  Utf8Stream stream;
  CHECK(stream.add("\xE2\x82") == "");
  CHECK(stream.add("\xAC!") == "€!");
}

TEST_CASE("bytes that are of no character are replaced, in pieces of any size") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\xFF"
       "a",
       "?a"},
      {"\x80", "?"},
      {"\xC0\xAF", "??"},
      {"\xE0\x80\x80", "???"},       // overlong forms
      {"\xED\xA0\x80", "???"},       // a surrogate
      {"\xF4\x90\x80\x80", "????"},  // above U+10FFFF
      {"\xE2\x82"
       "a",
       "??a"},
      {"\xF0\x9F\x98", "???"},  // not complete
  };
  for (const auto& [text, shown] : cases) {
    std::string expected;
    for (const char c : shown) expected += c == '?' ? kReplacement : std::string(1, c);
    for (size_t size = 1; size <= text.size(); ++size) CHECK(in_pieces(text, size) == expected);
  }
}

TEST_CASE("any bytes become UTF-8 that a JSON library accepts, and valid text stays as it is") {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) {
      // Bytes at the borders of UTF-8's ranges are likely.
      const std::string likely = "\x7F\x80\x8F\x90\x9F\xA0\xBF\xC1\xC2\xE0\xED\xEF\xF0\xF4\xF5";
      text += random() % 3 == 0 ? static_cast<char>(random()) : likely[random() % likely.size()];
    }
    const auto valid = in_pieces(text, 1 + random() % 12);
    CHECK_NOTHROW(nlohmann::json(valid).dump());
    CHECK(in_pieces(valid, 1 + random() % 12) == valid);
  }
}
