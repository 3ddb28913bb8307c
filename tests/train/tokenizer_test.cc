#include "train/tokenizer.h"

#include "base/error.h"
#include "tests/support/torch_test.h"

namespace perigee::train {

TEST_CASE("bytes are tokens") {
  const auto bytes = make_tokenizer("bytes");
  CHECK(bytes->vocab() == 256);
  CHECK(bytes->encode("a\xff") == std::vector<int64_t>{97, 255});
  CHECK(bytes->decode({97, 255}) == "a\xff");
}

TEST_CASE("a tokenizer that is no SentencePiece model is named") {
  CHECK_THROWS_WITH(
      make_tokenizer("README.md"),
      Catch::StartsWith("[data] tokenizer must be \"bytes\" or a SentencePiece model") &&
          Catch::Contains("README.md"));
}

}  // namespace perigee::train
