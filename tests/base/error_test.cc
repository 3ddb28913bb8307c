#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/fail.h"

using perigee::Error;
using perigee::Status;

TEST_CASE("an error's text is its area in brackets and the rule with the value") {
  try {
    perigee::fail("mesh", "axes multiply to {} ranks, but got {}", 8, 6);
    FAIL("fail() returned");
  } catch (const Error& e) {
    CHECK(std::string(e.what()) == "[mesh] axes multiply to 8 ranks, but got 6");
    CHECK(e.status() == Status::invalid);
  }
}

TEST_CASE("fail_run() ends the job with status 1") {
  try {
    perigee::fail_run("exec", "rank {} died", 3);
    FAIL("fail_run() returned");
  } catch (const Error& e) {
    CHECK(std::string(e.what()) == "[exec] rank 3 died");
    CHECK(static_cast<int>(e.status()) == 1);
  }
}

TEST_CASE("an error shows control characters, which a terminal would obey") {
  CHECK(std::string(Error(Status::invalid, "job", "name is \x1b[2J\r\x7f\n\ttr\xc3\xbc").what()) ==
        "[job] name is \\x1b[2J\\x0d\\x7f\n\ttr\xc3\xbc");
}

TEST_CASE("an error leaves out the middle of a long text") {
  std::string name;
  while (name.size() < 40'000) name += "\u00e4";
  try {
    perigee::fail("file", "a name must be short, but got {}; give another", name);
  } catch (const Error& e) {
    const std::string text = e.what();
    CHECK(text.size() < 16'100);
    CHECK(text.starts_with("[file] a name must be short, but got \u00e4\u00e4"));
    CHECK(text.ends_with("\u00e4\u00e4; give another"));
    CHECK(text.find("\u00e4 [24") != text.npos);
    CHECK(text.find(" bytes are left out] \u00e4") != text.npos);
    return;
  }
  FAIL("fail() returned");
}

TEST_CASE("an error is caught as std::exception") {
  CHECK_THROWS_AS(perigee::fail("a", "b"), std::exception);
}

TEST_CASE("nearest() finds a typing error and nothing farther") {
  const std::vector<std::string> names{"data", "tensor", "pipe", "sequence"};
  CHECK(perigee::nearest("tensro", names) == "tensor");
  CHECK(perigee::nearest("sequnce", names) == "sequence");
  CHECK(perigee::nearest("data", names) == "data");
  CHECK(perigee::nearest("expert", names).empty());
  CHECK(perigee::nearest("x", {}).empty());
  CHECK(perigee::did_you_mean("tensro", names) == ", did you mean \"tensor\"?");
  CHECK(perigee::did_you_mean("optimizer", names).empty());
}
