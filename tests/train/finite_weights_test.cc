// Numbers that are not finite, in the pieces of a checkpoint.
#include "train/output/finite_weights.h"

#include <cstdint>
#include <cstring>
#include <limits>

#include "tests/support/torch_test.h"

using namespace perigee;
using namespace perigee::train;
using graph::DType;

namespace {

// A piece of one dim with elements of the given bits; the last one is `last`.
template <class Word>
struct Tensor {
  Tensor(const std::string& name, DType dtype, Word last, size_t length = 100)
      : words(length, Word(1)) {
    words.back() = last;
    const auto size = static_cast<int64_t>(words.size());
    piece = {{name, dtype, {size}, {{0, size}}}, std::as_bytes(std::span(words))};
  }
  std::vector<Word> words;
  checkpoint::Piece piece;
};

template <class Word>
std::string found(DType dtype, Word last) {
  const Tensor<Word> good("a", dtype, Word(1)), tensor("b", dtype, last);
  const std::vector<checkpoint::Piece> pieces = {good.piece, tensor.piece};
  return find_not_finite(pieces, [](const std::string&) { return true; });
}

template <class Word, class Float>
Word bits(Float value) {
  Word word;
  std::memcpy(&word, &value, sizeof word);
  return word;
}

}  // namespace

TEST_CASE("NaN and infinities of any sign are found in every type of weights") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    CHECK(found(DType::float32, bits<uint32_t>(value)) == "b");
    CHECK(found(DType::float64, bits<uint64_t>(double(value))) == "b");
    CHECK(found(DType::bfloat16, static_cast<uint16_t>(bits<uint32_t>(value) >> 16)) == "b");
  }
  CHECK(found(DType::float16, uint16_t{0x7c00}) == "b");
  CHECK(found(DType::float16, uint16_t{0xfe01}) == "b");
}

TEST_CASE("the largest numbers are finite") {
  CHECK(found(DType::float32, bits<uint32_t>(std::numeric_limits<float>::max())) == "");
  CHECK(found(DType::float64, bits<uint64_t>(std::numeric_limits<double>::lowest())) == "");
  CHECK(found(DType::bfloat16, uint16_t{0x7f7f}) == "");
  CHECK(found(DType::float16, uint16_t{0x7bff}) == "");
  CHECK(found(DType::int64, int64_t{-1}) == "");
}

TEST_CASE("only wanted tensors count, and the first is named with its box") {
  const Tensor<uint32_t> mask("mask", DType::float32, 0x7f800000);
  Tensor<uint32_t> weight("w", DType::float32, 0x7f800000);
  weight.piece.part.shape = {200};
  const std::vector<checkpoint::Piece> pieces = {mask.piece, weight.piece};
  CHECK(find_not_finite(pieces, [](const auto& name) { return name != "mask"; }) == "w[0:100]");
  CHECK(find_not_finite(pieces, [](const auto&) { return false; }) == "");
}

TEST_CASE("one number that is not finite is found at every place of a long tensor") {
  constexpr size_t kLength = 600'000;  // above the bytes that one thread looks at
  Tensor<uint32_t> weight("w", DType::float32, 1, kLength);
  Tensor<uint16_t> half("h", DType::bfloat16, 1, kLength);
  const std::vector<checkpoint::Piece> pieces = {weight.piece, half.piece};
  const auto find = [&] {
    return find_not_finite(pieces, [](const auto&) { return true; });
  };
  CHECK(find() == "");
  for (size_t i = 0; i < kLength; i = i + 1 + i / 7) {
    weight.words[i] = 0x7f800000;
    CHECK(find() == "w");
    weight.words[i] = 1;
    half.words[i] = 0x7f80;
    CHECK(find() == "h");
    half.words[i] = 1;
  }
  CHECK(find() == "");
}
