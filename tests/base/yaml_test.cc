#include "base/text/yaml.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "base/error.h"

using namespace perigee;
using nlohmann::json;

TEST_CASE("YAML is parsed by its rules, with the line of each value") {
  const auto yaml = parse_yaml(
      "# a comment\n- name: aten::mm\n  dims: ['0,1', 1, -2, 1.5]\n  ok: true\n  text: \"true\"\n"
      "- {name: null, empty: , list: []}\n",
      "a.yaml");
  CHECK(yaml.value == json::parse(R"([
    {"name": "aten::mm", "dims": ["0,1", 1, -2, 1.5], "ok": true, "text": "true"},
    {"name": null, "empty": null, "list": []}])"));
  CHECK(yaml.lines.at("/0") == 2);
  CHECK(yaml.lines.at("/0/dims/2") == 3);
  CHECK(yaml.lines.at("/0/text") == 5);
  CHECK(yaml.lines.at("/1/list") == 6);
  CHECK(parse_yaml("", "a.yaml").value.is_null());
  const std::string text = R"({"a": [1, 2.5, "x", true, null]})";
  CHECK(parse_yaml(text, "a.json").value == json::parse(text));
}

TEST_CASE("invalid YAML is refused with its line") {
  const auto error = [](const std::string& text) -> std::string {
    try {
      parse_yaml(text, "a.yaml");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK_THAT(error("- a\n- [b\n"), Catch::StartsWith("[yaml] a.yaml:3:1: "));
  CHECK(error("a: 1\na: 2\n") == "[yaml] a.yaml:2:1: the key \"a\" occurs twice");
  CHECK(error("a: 1\n---\nb: 2\n") ==
        "[yaml] a.yaml:3:1: a file has one document, but here begins another");
  CHECK_THAT(error("[1]: 2\n"), Catch::Contains("a key is a text"));
  CHECK_THAT(error("&a [*a]\n"), Catch::Contains("at most 64 deep"));
  CHECK(error(std::string(64, '[') + std::string(64, ']')) == "");
  CHECK_THAT(error(std::string(66, '[') + std::string(66, ']')), Catch::Contains("64 deep"));
  CHECK_THAT(error(std::string(100'000, '[')), Catch::Contains("1000 brackets are not closed"));
  // 10^12 values in 300 bytes.
  std::string aliases = "- &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    aliases += fmt::format("- &a{} [", i);
    for (int k = 0; k < 10; ++k) aliases += fmt::format("{}*a{}", k == 0 ? "" : ", ", i - 1);
    aliases += "]\n";
  }
  CHECK_THAT(error(aliases), Catch::Contains("aliases repeat values too often"));
  const std::string few = "- &a [x, y]\n- [*a, *a, *a]\n";
  CHECK(error(few) == "");
}
