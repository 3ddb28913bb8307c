#include "base/text/match.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

using perigee::matches;

TEST_CASE("a pattern matches names component by component") {
  CHECK(matches("blocks.*", "blocks.3"));
  CHECK_FALSE(matches("blocks.*", "blocks"));
  CHECK_FALSE(matches("blocks.*", "blocks.3.attn"));
  CHECK(matches("blocks.**", "blocks.3.attn"));
  CHECK(matches("blocks.**", "blocks"));
  CHECK(matches("**.bias", "blocks.3.attn.bias"));
  CHECK(matches("**.bias", "bias"));
  CHECK_FALSE(matches("**.bias", "bias.x"));
  CHECK(matches("**", ""));
  CHECK(matches("**", "a.b"));
  CHECK_FALSE(matches("*", ""));
  CHECK(matches("blocks.*.attn.**", "blocks.3.attn.qkv.weight"));
  CHECK(matches("blocks.1?.up*", "blocks.12.up_proj"));
  CHECK_FALSE(matches("blocks.1?.up*", "blocks.1.up_proj"));
  CHECK(matches("a.**.**.d", "a.d"));
  CHECK(matches("a.**.**", "a"));
  CHECK(matches("", ""));
  CHECK_FALSE(matches("a", "ab"));
}

TEST_CASE("matching a pattern of many wildcards does not take exponential time") {
  std::string pattern = "**", name = "a";
  for (int i = 0; i < 200; ++i) {
    pattern += ".*a*.**";
    name += ".aaaaaaaa";
  }
  CHECK_FALSE(matches(pattern + ".b", name));
  CHECK(matches(pattern, name));
}

TEST_CASE("any of several patterns may match") {
  const std::vector<std::string> patterns = {"embed.**", "**.bias"};
  CHECK(perigee::matches_any(patterns, "embed.weight"));
  CHECK(perigee::matches_any(patterns, "fc.bias"));
  CHECK_FALSE(perigee::matches_any(patterns, "fc.weight"));
}

TEST_CASE("a pattern that matches nothing is suggested with ** where that matches") {
  const std::vector<std::string> names = {"embed.weight", "blocks.0.attn.qkv.weight",
                                          "blocks.0.mlp.up.weight"};
  const auto suggestion = [&](std::string_view pattern) {
    return perigee::did_you_mean_pattern(pattern, names);
  };
  CHECK(suggestion("mlp.**") == ", did you mean \"**.mlp.**\"?");
  CHECK(suggestion("up.weight") == ", did you mean \"**.up.weight\"?");
  CHECK(suggestion("blocks.*.mlp") == ", did you mean \"blocks.*.mlp.**\"?");
  CHECK(suggestion("attn") == ", did you mean \"**.attn.**\"?");
  CHECK(suggestion("embed.wieght") == ", did you mean \"embed.weight\"?");
  CHECK(suggestion("nothing.alike.here").empty());
}
