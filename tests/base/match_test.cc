#include "base/match.h"

#include <catch2/catch.hpp>

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
  CHECK(matches("", ""));
  CHECK_FALSE(matches("a", "ab"));
}
