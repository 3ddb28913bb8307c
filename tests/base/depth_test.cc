#include "base/text/depth.h"

#include <catch2/catch.hpp>
#include <string>

#include "base/error.h"

using namespace perigee;
using Catch::Contains;

namespace {

std::string repeat(std::string_view text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

}  // namespace

TEST_CASE("JSON nests at most 200 deep, and brackets in strings do not count") {
  const auto check = [](const std::string& text) { check_json_depth(text, "plan", "p.json"); };
  CHECK_NOTHROW(check(repeat("[", 200) + repeat("]", 200)));
  CHECK_THROWS_WITH(check(repeat("[", 100) + repeat("{", 101)),
                    Contains("[plan] p.json: lists and objects are nested at most 200 deep"));
  CHECK_NOTHROW(check("\"" + repeat("[", 300) + "\""));
  CHECK_NOTHROW(check("\"\\\"" + repeat("[", 300) + "\""));
  CHECK_NOTHROW(check(repeat("[]", 300)));
  CHECK_THROWS_AS(check("\"\\\\\"" + repeat("[", 300)), Error);
}

TEST_CASE(
    "a TOML key has at most 100 parts, and dots in strings, comments and numbers do not count") {
  const auto check = [](const std::string& text) { check_toml(text, "job", "j.toml"); };
  const auto dots = repeat("a.", 150);
  CHECK_NOTHROW(check(repeat("a.", 99) + "a = 1\n"));
  CHECK_THROWS_WITH(check(dots + "a = 1\n"), Contains("[job] j.toml: a key has at most 100 parts"));
  CHECK_THROWS_AS(check("[" + dots + "a]\n"), Error);
  CHECK_THROWS_AS(check(repeat("\"a\" . ", 150) + "a = 1\n"), Error);
  CHECK_THROWS_AS(check("x = \"\"\"\n\\\"\"\"\"\n" + dots + "a = 1\n"), Error);
  CHECK_NOTHROW(check("x = \"" + dots + "\"\n"));
  CHECK_NOTHROW(check("x = '" + dots + "'\n"));
  CHECK_NOTHROW(check("x = \"\"\"\n\"" + dots + "\"\"\"\n"));
  CHECK_NOTHROW(check("x = '''\n" + dots + "'''\n"));
  CHECK_NOTHROW(check("x = 1 # " + dots + "\n"));
  CHECK_THROWS_AS(check("x = \"\"\"a\"\"\"\"\n" + dots + "a = \"y\"\n"), Error);
  CHECK_THROWS_AS(check("x = \"not closed\n" + dots + "a = 1\n"), Error);
  CHECK_NOTHROW(check("x = [" + repeat("1.5, ", 150) + "]\n"));
}
