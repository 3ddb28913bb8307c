#include "exec/kernels/product/blocked_product.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>

#include "exec/kernels/lanes.h"
#include "exec/kernels/product/packed_blocks.h"

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
// A run multiplies up to kOuters packed blocks by up to kInners others. Of several parts of the depth
// it multiplies one by up to kInnersOfSums, whose sums are kept from one part to the next.
constexpr int64_t kOuters = 4, kInners = 64, kInnersOfSums = 16;

// Returns the bytes of a core's second-level cache.
int64_t second_level_bytes() {
  static const int64_t bytes = std::max<int64_t>(sysconf(_SC_LEVEL2_CACHE_SIZE), 1 << 20);
  return bytes;
}

constexpr int64_t blocks_of(int64_t n, int64_t side) { return (n + side - 1) / side; }

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

// A product by blocks of its result. Threads take runs of them as they are ready, so that none waits
// for one that other programs slow down. A thread packs the blocks of a run's outer factor where it
// needs them, so that they stay in its second-level cache; blocks of the inner one are packed before,
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
        run_outers_(parts_ > 1 ? 1
                               : std::clamp<int64_t>(second_level_bytes() / 2 /
                                                         (block(b_outside_) * int64_t{sizeof(P)}),
                                                     1, kOuters)),
        run_inners_(blocks_of(
            inners_, std::max(blocks_of(inners_, parts_ > 1 ? kInnersOfSums : kInners),
                              std::min(inners_, blocks_of(2 * at::get_num_threads(), outers_))))),
        add_(add || bias != nullptr),
        bias_(bias == nullptr ? nullptr : bias->const_data_ptr<R>()),
        to_(result.mutable_data_ptr<R>()),
        row_(std::max(result.stride(0), b_.lines)) {}

  void run() {
    const auto type = c10::CppTypeToScalarType<P>::value;
    const int64_t threads = at::get_num_threads();
    const int64_t size = spare() + run_outers_ * block(b_outside_);
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
            pack(!b_outside_, i, 1, p, of_thread(scratch, size), prepared(i, p));
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
  int64_t run_sums() const { return (parts_ > 1 ? run_inners_ : 1) * kSums; }
  // Elements that packing needs beside its result.
  int64_t spare() const { return kSpareDepth * kRows * (b_outside_ ? 1 : run_outers_); }
  int64_t depth_of(int64_t part) const { return std::min(part_, a_.depth - part * part_); }
  P* prepared(int64_t inner, int64_t part) const {
    return inner_ + ((part - first_packed_) * inners_ + inner) * block(!b_outside_);
  }

  // Packs a part of `n` blocks of the right factor or the left one, from block `i` on.
  void pack(bool right, int64_t i, int64_t n, int64_t part, P* spare, P* to) const {
    const auto& from = right ? b_ : a_;
    const int64_t side = right ? kWide : kRows, line = i * side,
                  count = std::min(n * side, from.lines - line);
    const PackedBlocks<P> blocks{to, side, block(right)};
    if (right) {
      pack_by_depth(from, line, count, part * part_, depth_of(part), blocks);
    } else {
      pack_by_line(from, line, count, part * part_, depth_of(part), spare, blocks, packed_row());
    }
  }

  // Blocks of the result.
  struct Run {
    int64_t outer, outers, inner, inners;
  };
  // Returns the next run, whose `outers` are 0 where none is left.
  Run take(std::atomic<int64_t>& next, int64_t threads) const {
    const int64_t all = outers_ * blocks_of(inners_, run_inners_);
    for (int64_t t = next; t < all;) {
      const int64_t outer = t % outers_, inner = t / outers_ * run_inners_,
                    share = std::clamp<int64_t>((all - t) / threads, 1, run_outers_),
                    outers = std::min(share, outers_ - outer);
      if (next.compare_exchange_weak(t, t + outers)) {
        return {outer, outers, inner, std::min(run_inners_, inners_ - inner)};
      }
    }
    return {};
  }

  // Computes runs until none is left.
  void multiply(std::atomic<int64_t>& next, int64_t threads, P* spare, float* sums) const {
    P* packed = spare + this->spare();
    for (Run run; (run = take(next, threads)).outers > 0;) {
      for (int64_t part = 0; part < parts_; ++part) {
        pack(b_outside_, run.outer, run.outers, part, spare, packed);
        const auto place_of = [&](int64_t t) {
          return place(run.outer + t % run.outers, run.inner + t / run.outers);
        };
        const int64_t blocks = run.inners * run.outers;
        for (int64_t t = 0; t < blocks; ++t) {
          const int64_t inner = t / run.outers;
          const Place here = place_of(t), next = place_of(std::min(t + 1, blocks - 1));
          float* sum = sums + (parts_ > 1 ? inner * kSums : 0);
          add_part(here, run.inner + inner, part, packed + t % run.outers * block(b_outside_), sum);
          if constexpr (!kDirect) {
            if (part + 1 == parts_) store(here, sum, next);
          } else if (part == 0) {
            for (int64_t r = 0; r < next.rows; ++r) prefetch(next, r);
          }
        }
      }
    }
  }

  // Adds the product of a part of two blocks; `packed` is the outer one. `sums` are used where
  // results are rounded.
  void add_part(const Place& to, int64_t inner, int64_t part, const P* packed, float* sums) const {
    const int64_t depth = packed_words<P>(depth_of(part)) * kWord;
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
      sums = row_of(to, 0);
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

  R* row_of(const Place& block, int64_t r) const {
    return to_ + (block.row + r) * row_ + block.column;
  }
  // Starts to fetch a row of a block of the result, which will be written.
  PERIGEE_INLINE void prefetch(const Place& block, int64_t r) const {
    prefetch_piece(row_of(block, r), kWide * int64_t{sizeof(R)});
  }

  // Rounds the sums of a block, and starts to fetch the rows of the next one.
  void store(const Place& to, const float* sums, const Place& next) const {
    for (int64_t r = 0; r < to.rows; ++r) {
      prefetch(next, r);
      round_row(sums + r * kWide, to.columns, row_of(to, r));
    }
  }

  ProductFactor<T> a_, b_;
  bool b_outside_;                   // the right factor's blocks are the outer ones
  int64_t outers_, inners_;          // blocks
  int64_t parts_, part_;             // of the depth, and elements of each but the last
  int64_t first_packed_;             // part of the left factor
  int64_t run_outers_, run_inners_;  // blocks of a run at most
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
