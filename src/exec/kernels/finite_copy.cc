#include "exec/kernels/finite_copy.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace perigee::exec::kernels {
namespace {

constexpr int64_t kBlockBytes = 16384;  // stays in the first cache between its two uses

// Returns whether one of `count` numbers has all bits of its exponent set. `Word`: its bits.
template <class Word>
bool any_not_finite(const std::byte* numbers, int64_t count, Word exponent) {
  Word found = 0;
  for (int64_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, numbers + i * int64_t{sizeof word}, sizeof word);
    found |= static_cast<Word>((word & exponent) == exponent);
  }
  return found != 0;
}

template <class Word>
bool any_not_finite_in_block(const std::byte* numbers, int64_t bytes, Word exponent) {
  // The compiler uses vectors where it knows the length.
  if (bytes == kBlockBytes) {
    return any_not_finite(numbers, kBlockBytes / int64_t{sizeof(Word)}, exponent);
  }
  return any_not_finite(numbers, bytes / int64_t{sizeof(Word)}, exponent);
}

bool is_block_finite(graph::DType dtype, const std::byte* numbers, int64_t bytes) {
  switch (dtype) {
    case graph::DType::float64:
      return !any_not_finite_in_block<uint64_t>(numbers, bytes, 0x7ff0000000000000);
    case graph::DType::float32:
      return !any_not_finite_in_block<uint32_t>(numbers, bytes, 0x7f800000);
    case graph::DType::bfloat16:
      return !any_not_finite_in_block<uint16_t>(numbers, bytes, 0x7f80);
    case graph::DType::float16:
      return !any_not_finite_in_block<uint16_t>(numbers, bytes, 0x7c00);
    default:
      return true;
  }
}

// `to`: nullptr to copy nothing.
bool visit(graph::DType dtype, std::span<const std::byte> numbers, std::byte* to) {
  const auto bytes = std::ssize(numbers);
  std::atomic<bool> finite = true;
  at::parallel_for(0, (bytes + kBlockBytes - 1) / kBlockBytes, 16, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const auto first = block * kBlockBytes, size = std::min(kBlockBytes, bytes - first);
      const auto* from = numbers.data() + first;
      if (!is_block_finite(dtype, from, size)) finite = false;
      if (to) std::memcpy(to + first, from, static_cast<size_t>(size));
    }
  });
  return finite;
}

}  // namespace

bool are_finite(graph::DType dtype, std::span<const std::byte> numbers) {
  return visit(dtype, numbers, nullptr);
}

bool copy_finite(graph::DType dtype, std::span<const std::byte> numbers, std::byte* to) {
  return visit(dtype, numbers, to);
}

}  // namespace perigee::exec::kernels
