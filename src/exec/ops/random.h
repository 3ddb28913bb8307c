// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011). An element's number depends on the seed, the op's key, the step and the
// element's index in the tensor of the whole step, so that any sharding and any number of
// microbatches draw the same numbers.
//
//   Philox key      (seed's low word, op key)
//   Philox counter  (element index / 4: low word, high word; step; seed's high word)
//   element         word index % 4 of the result
//
// The element type only rounds: a uniform number has 24 bits (11 for float16, 8 for bfloat16).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "exec/ops/op.h"

namespace perigee::exec {

// The bijection itself, ten rounds.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// The random words of one op in one step.
struct RandomStream {
  uint64_t seed = 0;
  uint32_t key = 0;
  uint32_t step = 0;
  const uint32_t* step_in_memory = nullptr;  // of the device; nullptr: `step` (Draw)

  // Returns the step's number; its memory is read when the op runs, on a CPU.
  uint32_t step_on_cpu() const { return step_in_memory ? *step_in_memory : step; }

  // Writes the words of elements begin, begin + 1, ...
  void words(uint64_t begin, std::span<uint32_t> out) const;
};

// The indices of a local tensor's elements in the tensor of the whole step, as runs: consecutive
// elements of the local tensor (row-major) with consecutive indices.
class RandomBlock {
 public:
  // `global` is the shape over all ranks of one microbatch and `begin` the local tensor's first
  // index in it (both empty: the local tensor is all of it). Microbatches are consecutive along
  // `batch_dim`; -1: all microbatches draw the same numbers. `batch_run`: they are so in each run of
  // so many elements of that dim; 0: in the whole dim.
  RandomBlock(std::vector<int64_t> local, std::vector<int64_t> global, std::vector<int64_t> begin,
              int64_t batch_dim, const Draw& draw, int64_t batch_run = 0);

  int64_t numel() const { return numel_; }
  // Calls f(first local element, first global index, count) for every run, in order.
  template <class F>
  void each_run(F f) const;

  // The runs as plain numbers, for kernels: a run has run() elements. The index of the first
  // element of the run at position `at` (row-major over outer()) is offset() + sum of at[d]
  // * outer_strides()[d].
  int64_t run() const { return run_; }
  uint64_t offset() const { return offset_; }
  const std::vector<int64_t>& outer() const { return outer_; }
  const std::vector<uint64_t>& outer_strides() const { return outer_strides_; }

 private:
  std::vector<int64_t> outer_;           // local sizes of the dims outside a run
  std::vector<uint64_t> outer_strides_;  // in the whole step's tensor
  uint64_t offset_ = 0;
  int64_t run_ = 0;
  int64_t numel_ = 0;
};

// Calls f(first local element, words) for pieces of the block in order; a piece has at most
// 1024 elements.
template <class F>
void each_words(const RandomStream& stream, const RandomBlock& block, F f);

// The distribution of a `perigee::random`, from its arguments.
struct Distribution {
  enum class Kind : uint8_t { uniform, normal, bernoulli, integer, exponential };
  Kind kind = Kind::uniform;
  double a = 0;  // low; mean; p
  double b = 1;  // high (not included); std
  // exponential: rate 1
};

// Returns the bits of a uniform number below 1 that the type represents exactly.
int uniform_bits(at::ScalarType type);

// Fills a contiguous tensor. Throws Error where the distribution does not exist for the
// element type.
void fill_random(at::Tensor& out, const Distribution& distribution, const RandomStream& stream,
                 const RandomBlock& block);

// Returns the threshold of dropout: elements with words below it are dropped, all of them where p
// is 1.
uint64_t drop_threshold(double p);

// out = self * mask / (1 - p), contiguous tensors of one floating type; out may be self.
void dropout(const at::Tensor& self, at::Tensor& out, double p, const RandomStream& stream,
             const RandomBlock& block);

// ---- implementation ----

template <class F>
void RandomBlock::each_run(F f) const {
  if (numel_ == 0) return;
  std::vector<int64_t> at(outer_.size(), 0);
  for (int64_t local = 0; local < numel_; local += run_) {
    uint64_t index = offset_;
    for (size_t d = 0; d < at.size(); ++d)
      index += static_cast<uint64_t>(at[d]) * outer_strides_[d];
    f(local, index, run_);
    for (size_t d = at.size(); d-- > 0;) {
      if (++at[d] < outer_[d]) break;
      at[d] = 0;
    }
  }
}

template <class F>
void each_words(const RandomStream& stream, const RandomBlock& block, F f) {
  alignas(64) std::array<uint32_t, 1024> buffer;
  block.each_run([&](int64_t local, uint64_t index, int64_t count) {
    for (int64_t done = 0; done < count;) {
      // Pieces end at multiples of four, so that no Philox block is computed twice.
      const uint64_t first = index + done;
      const auto n = std::min<int64_t>(count - done, buffer.size() - first % 4);
      const std::span<uint32_t> words(buffer.data(), n);
      stream.words(first, words);
      f(local + done, std::span<const uint32_t>(words));
      done += n;
    }
  });
}

}  // namespace perigee::exec
