#include "exec/ops/random.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/fail.h"
#include "exec/ops/philox.h"
#include "exec/ops/simd.h"

namespace perigee::exec {
namespace {

#if defined(__x86_64__)
// Lane-wise 32 x 32 bit products, high and low words.
__attribute__((target("avx2"))) inline void multiply(__m256i a, __m256i m, __m256i& high,
                                                     __m256i& low) {
  const __m256i even = _mm256_mul_epu32(a, m);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), m);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
}

// Writes the words of the 8 * groups blocks that start at `block`.
__attribute__((target("avx2"))) void blocks_avx2(const RandomStream& stream, uint64_t block,
                                                 int64_t groups, uint32_t* out) {
  const __m256i m0 = _mm256_set1_epi32(static_cast<int>(kPhiloxMultiplier0));
  const __m256i m1 = _mm256_set1_epi32(static_cast<int>(kPhiloxMultiplier1));
  for (int64_t g = 0; g < groups; ++g, block += 8, out += 32) {
    alignas(32) uint32_t low[8], high[8];
    for (uint64_t i = 0; i < 8; ++i) {
      low[i] = static_cast<uint32_t>(block + i);
      high[i] = static_cast<uint32_t>((block + i) >> 32);
    }
    __m256i c0 = _mm256_load_si256(reinterpret_cast<const __m256i*>(low));
    __m256i c1 = _mm256_load_si256(reinterpret_cast<const __m256i*>(high));
    __m256i c2 = _mm256_set1_epi32(static_cast<int>(stream.step_on_cpu()));
    __m256i c3 = _mm256_set1_epi32(static_cast<int>(stream.seed >> 32));
    uint32_t k0 = static_cast<uint32_t>(stream.seed), k1 = stream.key;
    for (int round = 0; round < 10; ++round) {
      __m256i high0, low0, high1, low1;
      multiply(c0, m0, high0, low0);
      multiply(c2, m1, high1, low1);
      c0 = _mm256_xor_si256(_mm256_xor_si256(high1, c1), _mm256_set1_epi32(static_cast<int>(k0)));
      c1 = low1;
      c2 = _mm256_xor_si256(_mm256_xor_si256(high0, c3), _mm256_set1_epi32(static_cast<int>(k1)));
      c3 = low0;
      k0 += kPhiloxWeyl0;
      k1 += kPhiloxWeyl1;
    }
    // 4 x 8 transpose: each block's four words side by side.
    const __m256i t0 = _mm256_unpacklo_epi32(c0, c1), t1 = _mm256_unpackhi_epi32(c0, c1);
    const __m256i t2 = _mm256_unpacklo_epi32(c2, c3), t3 = _mm256_unpackhi_epi32(c2, c3);
    const __m256i u0 = _mm256_unpacklo_epi64(t0, t2), u1 = _mm256_unpackhi_epi64(t0, t2);
    const __m256i u2 = _mm256_unpacklo_epi64(t1, t3), u3 = _mm256_unpackhi_epi64(t1, t3);
    auto* to = reinterpret_cast<__m256i*>(out);
    _mm256_storeu_si256(to + 0, _mm256_permute2x128_si256(u0, u1, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(u2, u3, 0x20));
    _mm256_storeu_si256(to + 2, _mm256_permute2x128_si256(u0, u1, 0x31));
    _mm256_storeu_si256(to + 3, _mm256_permute2x128_si256(u2, u3, 0x31));
  }
}
#endif

PhiloxWords block_words(const RandomStream& stream, uint64_t block) {
  return philox_block(stream.seed, stream.key, stream.step_on_cpu(), block);
}

// The four standard normal numbers of one Philox block.
std::array<double, 4> normals(const RandomStream& stream, uint64_t block) {
  const auto words = block_words(stream, block);
  const auto [a, b] = normal_pair(words.w[0], words.w[1]);
  const auto [c, d] = normal_pair(words.w[2], words.w[3]);
  return {a, b, c, d};
}

PERIGEE_SIMD void dropout_float(const float* self, float* out, const uint32_t* words, int64_t n,
                                uint32_t threshold, float scale) {
  for (int64_t i = 0; i < n; ++i) out[i] = words[i] >= threshold ? self[i] * scale : 0.0f;
}

}  // namespace

int uniform_bits(at::ScalarType type) {
  return type == at::kBFloat16 ? 8 : type == at::kHalf ? 11 : 24;
}

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  const auto words = philox_rounds({{c[0], c[1], c[2], c[3]}}, k[0], k[1]);
  return {words.w[0], words.w[1], words.w[2], words.w[3]};
}

void RandomStream::words(uint64_t begin, std::span<uint32_t> out) const {
  size_t done = 0;
  const auto partial = [&](size_t count) {
    const auto block = block_words(*this, (begin + done) / 4);
    for (size_t i = 0; i < count; ++i) out[done + i] = block.w[(begin + done + i) % 4];
    done += count;
  };
  if (begin % 4 != 0) partial(std::min<size_t>(4 - begin % 4, out.size()));
#if defined(__x86_64__)
  if (has_avx2()) {
    const auto groups = static_cast<int64_t>((out.size() - done) / 32);
    blocks_avx2(*this, (begin + done) / 4, groups, out.data() + done);
    done += groups * 32;
  }
#endif
  while (done < out.size()) partial(std::min<size_t>(4, out.size() - done));
}

RandomBlock::RandomBlock(std::vector<int64_t> local, std::vector<int64_t> global,
                         std::vector<int64_t> begin, int64_t batch_dim, const Draw& draw,
                         int64_t batch_run) {
  auto dims = static_cast<int64_t>(local.size());
  if (global.empty()) global = local;
  if (begin.empty()) begin.assign(dims, 0);
  if (std::ssize(global) != dims || std::ssize(begin) != dims || batch_dim < -1 ||
      batch_dim >= std::max<int64_t>(dims, 1)) {
    fail("exec",
         "a random op's \"global\" and \"begin\" must have its {} dims and \"batch_dim\" be one of "
         "them, but got {}, {} and {}",
         dims, global.size(), begin.size(), batch_dim);
  }
  if (batch_run > 0 && batch_dim >= 0) {  // dims [runs, run]
    for (auto* sizes : {&local, &global, &begin}) {
      auto& size = sizes->at(static_cast<size_t>(batch_dim));
      if (size % batch_run != 0) {
        fail("exec", "a random op's dim must have whole runs of {} elements, but got {}", batch_run,
             size);
      }
      size /= batch_run;
      sizes->insert(sizes->begin() + batch_dim + 1, sizes == &begin ? 0 : batch_run);
    }
    ++batch_dim;
    ++dims;
  }
  numel_ = 1;
  for (int64_t d = 0; d < dims; ++d) {
    numel_ *= local[d];
    if (begin[d] < 0 || begin[d] + local[d] > global[d]) {
      fail("exec",
           "a random op's block must lie in its whole tensor, but got [{}, {}) of {} in dim {}",
           begin[d], begin[d] + local[d], global[d], d);
    }
  }
  if (dims == 0) {
    run_ = 1;
    offset_ = batch_dim < 0 ? 0 : static_cast<uint64_t>(draw.microbatch);
    return;
  }
  if (batch_dim >= 0) {
    begin[batch_dim] += draw.microbatch * global[batch_dim];
    global[batch_dim] *= draw.microbatches;
  }
  // A run spans the innermost dims that are not cut, and one more.
  run_ = 1;
  uint64_t stride = 1;
  bool consecutive = true;
  for (size_t d = local.size(); d-- > 0;) {
    offset_ += static_cast<uint64_t>(begin[d]) * stride;
    if (consecutive) {
      run_ *= local[d];
      consecutive = local[d] == global[d];
    } else {
      outer_.insert(outer_.begin(), local[d]);
      outer_strides_.insert(outer_strides_.begin(), stride);
    }
    stride *= static_cast<uint64_t>(global[d]);
  }
}

void fill_random(at::Tensor& out, const Distribution& distribution, const RandomStream& stream,
                 const RandomBlock& block) {
  using Kind = Distribution::Kind;
  const int bits = uniform_bits(out.scalar_type());
  const double a = distribution.a, b = distribution.b;
  const bool floating = out.is_floating_point();
  if (!floating && (distribution.kind == Kind::uniform || distribution.kind == Kind::normal ||
                    distribution.kind == Kind::exponential)) {
    fail("exec", "this distribution requires a floating point type, but got {}",
         c10::toString(out.scalar_type()));
  }
  AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, out.scalar_type(), "random", [&] {
    auto* data = out.mutable_data_ptr<scalar_t>();
    const auto each = [&](auto value) {
      each_words(stream, block, [&](int64_t local, std::span<const uint32_t> words) {
        for (size_t i = 0; i < words.size(); ++i)
          data[local + i] = static_cast<scalar_t>(value(words[i]));
      });
    };
    switch (distribution.kind) {
      case Kind::uniform:
        return each([&](uint32_t w) { return add_product(a, b - a, uniform_of(w, bits)); });
      case Kind::bernoulli: {
        const auto threshold = drop_threshold(a);
        return each([&](uint32_t w) { return w < threshold ? 1.0 : 0.0; });
      }
      case Kind::integer: {
        const auto low = static_cast<int64_t>(a);
        const auto range = static_cast<uint64_t>(static_cast<int64_t>(b) - low);
        if (range > kMostIntegers) {
          fail("exec", "random integers are drawn from a range of at most 2^32, but got {}", range);
        }
        return each([&](uint32_t w) { return integer_of(w, low, range); });
      }
      case Kind::exponential:
        return each([&](uint32_t w) { return exponential_of(w, bits); });
      case Kind::normal:
        return block.each_run([&](int64_t local, uint64_t index, int64_t count) {
          for (int64_t i = 0; i < count;) {
            const auto numbers = normals(stream, (index + i) / 4);
            do {
              data[local + i] = static_cast<scalar_t>(add_product(a, b, numbers[(index + i) % 4]));
            } while (++i < count && (index + i) % 4 != 0);
          }
        });
    }
  });
}

uint64_t drop_threshold(double p) {
  return static_cast<uint64_t>(std::llround(std::clamp(p, 0.0, 1.0) * 4294967296.0));
}

void dropout(const at::Tensor& self, at::Tensor& out, double p, const RandomStream& stream,
             const RandomBlock& block) {
  const uint64_t threshold = drop_threshold(p);
  if (threshold > UINT32_MAX) {
    out.zero_();
    return;
  }
  const double scale = 1 / (1 - p);
  if (self.scalar_type() == at::kFloat) {
    const auto* from = self.const_data_ptr<float>();
    auto* to = out.mutable_data_ptr<float>();
    each_words(stream, block, [&](int64_t local, std::span<const uint32_t> words) {
      dropout_float(from + local, to + local, words.data(), static_cast<int64_t>(words.size()),
                    static_cast<uint32_t>(threshold), static_cast<float>(scale));
    });
    return;
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, self.scalar_type(), "dropout", [&] {
    using Wide = at::opmath_type<scalar_t>;
    const auto* from = self.const_data_ptr<scalar_t>();
    auto* to = out.mutable_data_ptr<scalar_t>();
    each_words(stream, block, [&](int64_t local, std::span<const uint32_t> words) {
      for (size_t i = 0; i < words.size(); ++i) {
        to[local + i] = words[i] >= threshold
                            ? static_cast<scalar_t>(static_cast<Wide>(from[local + i]) *
                                                    static_cast<Wide>(scale))
                            : scalar_t(0);
      }
    });
  });
}

}  // namespace perigee::exec
