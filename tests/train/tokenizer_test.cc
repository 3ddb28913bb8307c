#include "train/tokenizer.h"

#include <dlfcn.h>

#include <catch2/catch.hpp>

#include "tests/train/support.h"

using namespace perigee;
using namespace perigee::train;
using test::error_of;
using test::Folder;

TEST_CASE("bytes are tokens and come back, whatever they are") {
  const auto bytes = make_tokenizer("bytes");
  CHECK(bytes->vocab() == 256);
  CHECK(bytes->encode("a\xff\n") == std::vector<int64_t>{97, 255, 10});
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  CHECK(bytes->decode(bytes->encode(all)) == all);
  CHECK(bytes->encode("").empty());
}

TEST_CASE("a file that is no SentencePiece model is refused") {
  Folder folder;
  const auto missing = folder.at("none.model");
  CHECK_THAT(error_of([&] { make_tokenizer(missing); }),
             Catch::StartsWith("[data] tokenizer must be \"bytes\" or a SentencePiece model, but " +
                               missing));
  const auto damaged = folder.add("bad.model", "this is no model");
  CHECK_THAT(error_of([&] { make_tokenizer(damaged); }),
             Catch::StartsWith("[data] tokenizer must be \"bytes\" or a SentencePiece model, but " +
                               damaged));
}
