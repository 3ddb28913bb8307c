#include "exec/kernels/blocked_product.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>

#include "exec/kernels/lanes.h"
#include "exec/kernels/transpose.h"

namespace perigee::exec::kernels {
namespace {

using at::BFloat16;
using at::Tensor;

constexpr int64_t kRows = 64;  // of a block of the left factor
// Columns of a block of the right one: 256 bytes of a packed row.
template <class P>
constexpr int64_t kColumns = 256 / sizeof(P);
constexpr int64_t kDepth = 1024;  // rows of the latter at most
constexpr int64_t kPadding = 16;  // words after a packed row: rows 4 KiB apart share cache sets
constexpr int64_t kRun = 16;  // blocks that a packed block is multiplied with, one after another

constexpr int64_t blocks_of(int64_t n, int64_t side) { return (n + side - 1) / side; }

PERIGEE_SIMD void transpose_words(const char* from, int64_t from_step, int64_t rows,
                                  int64_t columns, char* to, int64_t to_step) {
  transpose<4>(from, from_step, rows, columns, to, to_step);
}
PERIGEE_SIMD void transpose_widened(const BFloat16* from, int64_t from_step, int64_t rows,
                                    int64_t columns, float* to, int64_t to_step) {
  transpose<2>(reinterpret_cast<const char*>(from), from_step, rows, columns,
               reinterpret_cast<char*>(to), to_step);
}

constexpr int64_t kAhead = 16;  // rows before its use that a row is fetched

// Starts to fetch a piece of a row, which need not exist: pieces of rows that are far apart are not
// foreseen by the CPU.
PERIGEE_INLINE void prefetch_piece(const void* row, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(row) + i);
}

// to [2 n]: the numbers of two rows [n] alternate.
PERIGEE_SIMD void alternate(const uint16_t* first, const uint16_t* second, int64_t n,
                            uint16_t* to) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    Halves a, b;
    std::memcpy(&a, first + i, sizeof a);
    std::memcpy(&b, second + i, sizeof b);
    const auto pairs = __builtin_convertvector(a, Words) | __builtin_convertvector(b, Words) << 16;
    std::memcpy(to + 2 * i, &pairs, sizeof pairs);
  }
  for (; i < n; ++i) {
    to[2 * i] = first[i];
    to[2 * i + 1] = second[i];
  }
}

PERIGEE_SIMD void round_lanes(const float* from, int64_t n, BFloat16* to) {
  each_lanes(n, [&](int64_t i, auto count)
                    PERIGEE_LAMBDA { store_lanes(to + i, load_lanes(from + i, count, 0), count); });
}

#if defined(__x86_64__)
// As LibTorch's products round: to nearest even, numbers below the smallest normal one to 0.
__attribute__((target("arch=x86-64-v4,avx512bf16"))) void round_by_instruction(const float* from,
                                                                               int64_t n,
                                                                               BFloat16* to) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto lanes = static_cast<__mmask16>(n - i < kLanes ? (1 << (n - i)) - 1 : -1);
    const auto rounded = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(lanes, from + i));
    _mm256_mask_storeu_epi16(to + i, lanes, reinterpret_cast<__m256i>(rounded));
  }
}
#endif

void round_row(const float* from, int64_t n, BFloat16* to) {
#if defined(__x86_64__)
  static const bool by_instruction = __builtin_cpu_supports("avx512bf16");
  if (by_instruction) return round_by_instruction(from, n, to);
#endif
  round_lanes(from, n, to);
}

PERIGEE_SIMD void widen_row(const BFloat16* from, int64_t n, float* to) {
  each_lanes(n, [&](int64_t i, auto count)
                    PERIGEE_LAMBDA { store_lanes(to + i, load_lanes(from + i, count, 0), count); });
}

// A factor by its lines: rows of the left one, columns of the right one.
template <class T>
struct Factor {
  const T* data;
  int64_t lines, depth;
  int64_t line_step, depth_step;  // elements; one of them is 1

  const T* at(int64_t line, int64_t d) const { return data + line * line_step + d * depth_step; }
};

// Packed depth is counted in words: of a float, or of two bfloat16 whose second one may be missing.
template <class P>
constexpr int64_t kPerWord = 4 / sizeof(P);

// Returns the words of `depth` elements.
template <class P>
constexpr int64_t words(int64_t depth) {
  return (depth + kPerWord<P> - 1) / kPerWord<P>;
}

// Packs `count` lines and `depth` elements of each as to [words, side]: a word of each line, then
// the next word of each.
template <class T>
void pack_by_depth(const Factor<T>& from, int64_t line, int64_t count, int64_t begin, int64_t depth,
                   T* to, int64_t side) {
  constexpr int64_t kWord = kPerWord<T>;
  const int64_t whole = depth / kWord;
  if (from.depth_step == 1) {
    if (from.line_step % kWord == 0) {
      transpose_words(reinterpret_cast<const char*>(from.at(line, begin)), from.line_step / kWord,
                      count, whole, reinterpret_cast<char*>(to), side);
    } else {
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t d = 0; d < whole; ++d) {
          std::copy_n(from.at(line + i, begin + d * kWord), kWord, to + (d * side + i) * kWord);
        }
      }
    }
  } else {
    for (int64_t d = 0; d < whole; ++d) {
      const T *row = from.at(line, begin + d * kWord), *next = row + from.depth_step;
      if constexpr (kWord == 1) {
        std::copy_n(row, count, to + d * side);
      } else {
        prefetch_piece(row + kAhead * from.depth_step, 256);
        prefetch_piece(next + kAhead * from.depth_step, 256);
        alternate(reinterpret_cast<const uint16_t*>(row), reinterpret_cast<const uint16_t*>(next),
                  count, reinterpret_cast<uint16_t*>(to) + d * side * kWord);
      }
    }
  }
  if constexpr (kWord == 2) {
    for (int64_t i = 0; depth % kWord != 0 && i < count; ++i) {
      to[(whole * side + i) * kWord] = *from.at(line + i, begin + depth - 1);
      to[(whole * side + i) * kWord + 1] = T(0);
    }
  }
}

// Packs them as `count` rows of `row` elements, which are words; `spare` has a block's size.
template <class T>
void pack_by_line(const Factor<T>& from, int64_t line, int64_t count, int64_t begin, int64_t depth,
                  T* spare, T* to, int64_t row) {
  if (from.depth_step == 1) {
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(from.at(line + i, begin), depth, to + i * row);
      to[i * row + depth] = T(0);
    }
  } else if constexpr (kPerWord<T> == 1) {
    transpose_words(reinterpret_cast<const char*>(from.at(line, begin)), from.depth_step, depth,
                    count, reinterpret_cast<char*>(to), row);
  } else {
    pack_by_depth(from, line, count, begin, depth, spare, kRows);
    transpose_words(reinterpret_cast<const char*>(spare), kRows, words<T>(depth), count,
                    reinterpret_cast<char*>(to), row / kPerWord<T>);
  }
}

// As above, widened.
void pack_by_depth(const Factor<BFloat16>& from, int64_t line, int64_t count, int64_t begin,
                   int64_t depth, float* to, int64_t side) {
  if (from.depth_step == 1) {
    return transpose_widened(from.at(line, begin), from.line_step, count, depth, to, side);
  }
  for (int64_t d = 0; d < depth; ++d) {
    const auto* row = from.at(line, begin + d);
    prefetch_piece(row + kAhead * from.depth_step, 128);
    widen_row(row, count, to + d * side);
  }
}

void pack_by_line(const Factor<BFloat16>& from, int64_t line, int64_t count, int64_t begin,
                  int64_t depth, float* /*spare*/, float* to, int64_t row) {
  if (from.depth_step != 1) {
    return transpose_widened(from.at(line, begin), from.depth_step, depth, count, to, row);
  }
  for (int64_t i = 0; i < count; ++i) widen_row(from.at(line + i, begin), depth, to + i * row);
}

// A product by blocks of its result, which are numbered outer block by outer block. Threads take runs
// of blocks as they are ready, so that none waits for one that other programs slow down. A thread
// packs a block of the outer factor where it needs it; blocks of the inner one are packed before,
// except parts of the left factor that the microkernel can read where they are.
// T, P, R: types of the factors, of packed blocks, and of the result.
template <class T, class P, class R>
class Product {
 public:
  Product(const Tensor& result, const Tensor& a, const Tensor& b, bool add, const Tensor* bias)
      : a_{a.const_data_ptr<T>(), a.size(0), a.size(1), a.stride(0), a.stride(1)},
        b_{b.const_data_ptr<T>(), b.size(1), b.size(0), b.stride(1), b.stride(0)},
        b_outside_(a_.depth_step == 1 || b_.lines >= a_.lines),
        outers_(b_outside_ ? blocks_of(b_.lines, kWide) : blocks_of(a_.lines, kRows)),
        inners_(b_outside_ ? blocks_of(a_.lines, kRows) : blocks_of(b_.lines, kWide)),
        parts_((a_.depth + kDepth - 1) / kDepth),
        part_(((a_.depth + parts_ - 1) / parts_ + 31) / 32 * 32),
        first_packed_(kWidens || a_.depth_step != 1 ? 0
                      : a_.depth % kWord == 0       ? parts_
                                                    : parts_ - 1),
        add_(add || bias != nullptr),
        bias_(bias == nullptr ? nullptr : bias->const_data_ptr<R>()),
        to_(result.mutable_data_ptr<R>()),
        row_(std::max(result.stride(0), b_.lines)) {}

  void run() {
    const auto type = c10::CppTypeToScalarType<P>::value;
    const int64_t threads = at::get_num_threads();
    const int64_t size = block(false) + block(b_outside_);
    const auto inner = at::empty({(parts_ - first_packed_) * inners_ * block(!b_outside_)}, type),
               outer = at::empty({threads, size}, type),
               sums = at::empty({kDirect ? 0 : threads, run_sums()}, at::kFloat);
    inner_ = inner.template mutable_data_ptr<P>();
    auto* scratch = outer.template mutable_data_ptr<P>();
    auto* sum = sums.template mutable_data_ptr<float>();
    const auto of_thread = [](auto* data, int64_t size) {
      return data + at::get_thread_num() * size;
    };
    if (first_packed_ < parts_) {
      at::parallel_for(0, inners_, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          for (int64_t p = first_packed_; p < parts_; ++p) {
            pack(!b_outside_, i, p, of_thread(scratch, size), prepared(i, p));
          }
        }
      });
    }
    std::atomic<int64_t> next = 0;
    at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
      multiply(next, threads, of_thread(scratch, size), of_thread(sum, run_sums()));
      at::native::cpublas::brgemm_release(kWord == 2);
    });
  }

 private:
  static constexpr int64_t kWord = kPerWord<P>, kWide = kColumns<P>, kSums = kRows * kWide;
  static constexpr bool kWidens = !std::is_same_v<T, P>;
  static constexpr bool kDirect = std::is_same_v<R, float>;  // sums are added up in the result

  // A block of the result.
  struct Place {
    int64_t row, column, rows, columns;
  };
  Place place(int64_t outer, int64_t inner) const {
    const int64_t row = (b_outside_ ? inner : outer) * kRows,
                  column = (b_outside_ ? outer : inner) * kWide;
    return {row, column, std::min(kRows, a_.lines - row), std::min(kWide, b_.lines - column)};
  }

  // Elements of a packed block of the right factor or the left one, and of the latter's rows.
  int64_t block(bool right) const { return right ? kWide * part_ : kRows * packed_row(); }
  int64_t packed_row() const { return part_ + kPadding * kWord; }
  // Sums of a run, which are kept from one part of the depth to the next.
  int64_t run_sums() const { return (parts_ > 1 ? kRun : 1) * kSums; }
  int64_t depth_of(int64_t part) const { return std::min(part_, a_.depth - part * part_); }
  P* prepared(int64_t inner, int64_t part) const {
    return inner_ + ((part - first_packed_) * inners_ + inner) * block(!b_outside_);
  }

  // Packs a part of block `i` of the right factor or the left one; `spare` is one of the left.
  void pack(bool right, int64_t i, int64_t part, P* spare, P* to) const {
    const auto& from = right ? b_ : a_;
    const int64_t side = right ? kWide : kRows, line = i * side,
                  count = std::min(side, from.lines - line);
    if (right) {
      pack_by_depth(from, line, count, part * part_, depth_of(part), to, side);
    } else {
      pack_by_line(from, line, count, part * part_, depth_of(part), spare, to, packed_row());
    }
  }

  // Blocks of the result that have one outer block.
  struct Run {
    int64_t outer, inner, blocks;
  };
  // Returns the next run, whose `blocks` are 0 where none is left. Runs get shorter towards the end.
  Run take(std::atomic<int64_t>& next, int64_t threads) const {
    const int64_t all = outers_ * inners_;
    for (int64_t t = next; t < all;) {
      const int64_t share = std::max<int64_t>(1, (all - t) / (2 * threads)),
                    run = std::min({kRun, share, inners_ - t % inners_});
      if (next.compare_exchange_weak(t, t + run)) return {t / inners_, t % inners_, run};
    }
    return {};
  }

  // Computes runs until none is left.
  void multiply(std::atomic<int64_t>& next, int64_t threads, P* spare, float* sums) const {
    P* packed = spare + block(false);
    int64_t current = -1;  // outer block in `packed`, where it has one part
    for (Run taken; (taken = take(next, threads)).blocks > 0;) {
      const auto [outer, first, run] = taken;
      for (int64_t part = 0; part < parts_; ++part) {
        if (parts_ > 1 || outer != current) pack(b_outside_, outer, part, spare, packed);
        for (int64_t i = 0; i < run; ++i) {
          const auto to = place(outer, first + i);
          float* sum = sums + (parts_ > 1 ? i * kSums : 0);
          add_part(to, first + i, part, packed, sum);
          if constexpr (!kDirect) {
            if (part + 1 == parts_) store(to, sum);
          }
        }
      }
      current = outer;
    }
  }

  // Adds the product of a part of two blocks; `packed` is the outer one. `sums` are used where
  // results are rounded.
  void add_part(const Place& to, int64_t inner, int64_t part, const P* packed, float* sums) const {
    const int64_t depth = words<P>(depth_of(part)) * kWord;
    const P *left = b_outside_ ? prepared(inner, part) : packed,
            *right = b_outside_ ? packed : prepared(inner, part);
    int64_t left_step = packed_row();
    if constexpr (!kWidens) {
      if (part < first_packed_) {
        left = a_.at(to.row, part * part_);
        left_step = std::max(a_.line_step, depth);
      }
    }
    int64_t step = kWide;
    if constexpr (kDirect) {
      sums = to_ + to.row * row_ + to.column;
      step = row_;
    }
    if (part == 0 && bias_ != nullptr) {
      for (int64_t r = 0; r < to.rows; ++r) start(bias_ + to.column, to.columns, sums + r * step);
    }
    at::native::cpublas::brgemm(to.rows, to.columns, depth, left_step, kWide, step,
                                add_ || part > 0, left, right, sums, kWord == 2);
  }

  static void start(const R* bias, int64_t n, float* to) {
    if constexpr (kDirect) {
      std::copy_n(bias, n, to);
    } else {
      widen_row(bias, n, to);
    }
  }

  void store(const Place& to, const float* sums) const {
    for (int64_t r = 0; r < to.rows; ++r) {
      round_row(sums + r * kWide, to.columns, to_ + (to.row + r) * row_ + to.column);
    }
  }

  Factor<T> a_, b_;
  bool b_outside_;           // the right factor's blocks are the outer ones
  int64_t outers_, inners_;  // blocks
  int64_t parts_, part_;     // of the depth, and elements of each but the last
  int64_t first_packed_;     // part of the left factor
  bool add_;
  const R* bias_;
  R* to_;
  int64_t row_;  // elements from one row of the result to the next
  P* inner_ = nullptr;
};

// LibTorch or oneDNN says by an error that it has no microkernels, as where the environment restricts
// instructions (ONEDNN_MAX_CPU_ISA).
template <class P>
bool has_microkernels() {
  alignas(64) const P a[2] = {P(1), P(1)}, b[2] = {P(1), P(1)};
  alignas(64) float sum[1];
  constexpr bool kPairs = kPerWord<P> == 2;
  try {
    at::native::cpublas::brgemm(1, 1, 2, 2, 1, 1, false, a, b, sum, kPairs);
    at::native::cpublas::brgemm_release(kPairs);
  } catch (const std::exception&) {
    return false;
  }
  return sum[0] == 2;
}

// Returns whether the CPU multiplies more pairs of bfloat16 than numbers of float32. Intel's do so by
// AMX alone.
bool has_fast_pairs() {
#if defined(__x86_64__)
  static const bool fast = !__builtin_cpu_is("intel") || __builtin_cpu_supports("amx-bf16");
  return fast && has_pair_microkernels();
#else
  return false;
#endif
}

}  // namespace

bool has_pair_microkernels() {
#if defined(__x86_64__)
  static const bool pairs = has_blocks(at::kFloat) && __builtin_cpu_supports("avx512bf16") &&
                            has_microkernels<BFloat16>();
  return pairs;
#else
  return false;
#endif
}

bool has_blocks(at::ScalarType factors) {
#if defined(__x86_64__)
  static const bool here = __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512vl") &&
                           __builtin_cpu_supports("avx512dq") && has_microkernels<float>();
  return here && (factors == at::kFloat || factors == at::kBFloat16);
#else
  return false;
#endif
}

bool widens_blocks(at::ScalarType factors) {
  return factors == at::kBFloat16 && has_blocks(factors) && !has_fast_pairs();
}

void multiply_by_blocks(const Tensor& result, const Tensor& a, const Tensor& b, bool add,
                        const Tensor* bias, std::optional<bool> widened) {
  const auto run = [&]<class T, class P, class R>(T, P, R) {
    Product<T, P, R>(result, a, b, add, bias).run();
  };
  const auto run_packed_as = [&](auto packed) {
    result.scalar_type() == at::kFloat ? run(BFloat16{}, packed, float{})
                                       : run(BFloat16{}, packed, BFloat16{});
  };
  if (a.scalar_type() == at::kFloat) {
    run(float{}, float{}, float{});
  } else if (widened.value_or(widens_blocks(a.scalar_type()))) {
    run_packed_as(float{});
  } else {
    run_packed_as(BFloat16{});
  }
}

}  // namespace perigee::exec::kernels
