#include "base/network/store_requests.h"

#include <catch2/catch.hpp>

using namespace perigee::store;

namespace {

// Returns the frame that `writer` builds, as a server receives it.
Frame received(Writer&& writer) {
  auto bytes = std::move(writer).finish();
  return take_frame(bytes, Limits().frame()).value();
}

}  // namespace

TEST_CASE(
    "a client that waits has its answer also where the request that set the key is malformed") {
  Requests requests{Limits()};
  CHECK(requests.handle(1, received(std::move(Writer(Kind::wait).text("key")))).empty());
  // A second key without its value.
  const auto answers = requests.handle(
      2, received(std::move(Writer(Kind::set).text("key").text("value").text("other"))));
  REQUIRE(answers.size() == 2);
  CHECK(answers[0].client == 2);
  CHECK(answers[0].last);
  CHECK(answers[1].client == 1);
  CHECK_FALSE(answers[1].last);
  CHECK_FALSE(requests.waits(1));
}

TEST_CASE("a frame has as many bytes as its limit, and not one more") {
  const auto bytes = std::move(Writer(Kind::wait).text("key")).finish();
  const size_t length = bytes.size() - 4;  // after the four bytes that tell it
  auto whole = bytes, long_one = bytes;
  CHECK(take_frame(whole, length));
  CHECK_THROWS_AS(take_frame(long_one, length - 1), Malformed);
}

TEST_CASE("a request of an unknown kind is answered with an error") {
  Requests requests{Limits()};
  const auto answers = requests.handle(1, received(Writer(static_cast<Kind>(63))));
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].last);
}
