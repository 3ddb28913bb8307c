// Numbers that are not finite, in memory and while it is copied.
#include "exec/kernels/finite_copy.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/support/torch_test.h"

using namespace perigee;
using namespace perigee::exec::kernels;
using graph::DType;

namespace {

// Looks for numbers with these bits in a copy, and without one; both must find the same.
template <class Word>
bool finite(DType dtype, const std::vector<Word>& words) {
  const auto bytes = std::as_bytes(std::span(words));
  std::vector<Word> copy(words.size() + 1, Word(0x5a));
  const bool found = copy_finite(dtype, bytes, reinterpret_cast<std::byte*>(copy.data()));
  REQUIRE(found == are_finite(dtype, bytes));
  REQUIRE(copy.back() == Word(0x5a));
  copy.pop_back();
  REQUIRE(copy == words);
  return found;
}

template <class Word>
bool last_finite(DType dtype, Word last) {
  std::vector<Word> words(100, Word(1));
  words.back() = last;
  return finite(dtype, words);
}

template <class Word, class Float>
Word bits(Float value) {
  Word word;
  std::memcpy(&word, &value, sizeof word);
  return word;
}

template <class Word>
void check_every_place(DType dtype, Word not_finite) {
  constexpr size_t kLength = 70'000;  // several blocks, the last one in part, on several threads
  std::vector<Word> words(kLength, Word(1));
  CHECK(finite(dtype, words));
  for (size_t i = 0; i < kLength; i = i + 1 + i / 7) {
    words[i] = not_finite;
    CHECK(!finite(dtype, words));
    words[i] = 1;
  }
  words.back() = not_finite;
  CHECK(!finite(dtype, words));
}

}  // namespace

TEST_CASE("NaN and infinities of any sign are found in every floating-point type") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    CHECK(!last_finite(DType::float32, bits<uint32_t>(value)));
    CHECK(!last_finite(DType::float64, bits<uint64_t>(double(value))));
    CHECK(!last_finite(DType::bfloat16, static_cast<uint16_t>(bits<uint32_t>(value) >> 16)));
  }
  CHECK(!last_finite(DType::float16, uint16_t{0x7c00}));
  CHECK(!last_finite(DType::float16, uint16_t{0xfe01}));
}

TEST_CASE("the largest numbers are finite, and so are integers") {
  CHECK(last_finite(DType::float32, bits<uint32_t>(std::numeric_limits<float>::max())));
  CHECK(last_finite(DType::float64, bits<uint64_t>(std::numeric_limits<double>::lowest())));
  CHECK(last_finite(DType::bfloat16, uint16_t{0x7f7f}));
  CHECK(last_finite(DType::float16, uint16_t{0x7bff}));
  CHECK(last_finite(DType::int64, int64_t{-1}));
  CHECK(finite(DType::float32, std::vector<uint32_t>()));
}

TEST_CASE("one number that is not finite is found at every place of a long tensor") {
  check_every_place<uint64_t>(DType::float64, 0x7ff0000000000000);
  check_every_place<uint32_t>(DType::float32, 0xffc00000);
  check_every_place<uint16_t>(DType::bfloat16, 0x7f80);
}
