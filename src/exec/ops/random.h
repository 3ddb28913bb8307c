// Random numbers as a function of where they are used: Philox4x32-10 (Salmon et al., "Parallel
// random numbers: as easy as 1, 2, 3", SC 2011). An element's number depends on the seed, the op's
// key, the step and the element's index in the tensor of the whole step, so that any sharding and
// any number of microbatches draw the same.
//
//   Philox key      (seed's low word, op key)
//   Philox counter  (element index / 4: low word, high word; step; seed's high word); word index %
//   4 of the result
//
// Numbers do not depend on the element type beyond its rounding: a uniform is 24 bits (11 for
// float16, 8 for bfloat16).
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

  // Writes the words of elements begin, begin + 1, ...
  void words(uint64_t begin, std::span<uint32_t> out) const;
};

// Where a local tensor lies in the tensor of the whole step: runs of consecutive elements of the
// local tensor (row-major) with consecutive indices.
class RandomBlock {
 public:
  // `global` is the shape over all ranks of one microbatch and `begin` the local tensor's first
  // index in it (both empty: the local tensor is all of it). Microbatches follow each other along
  // `batch_dim`; -1: they draw alike.
  RandomBlock(const std::vector<int64_t>& local, std::vector<int64_t> global,
              std::vector<int64_t> begin, int64_t batch_dim, const Draw& draw);

  int64_t numel() const { return numel_; }
  // Calls f(first local element, first global index, count) for every run, in order.
  template <class F>
  void each_run(F f) const;

  // The same for code that finds its own place: a run has run() elements; the indices of the runs'
  // first elements are offset() and the multiples of outer_strides() within outer(), row-major.
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

// Calls f(first local element, words) for pieces of the block in order; a piece has at
// most 1024 elements.
template <class F>
void each_words(const RandomStream& stream, const RandomBlock& block, F f);

// What `perigee::random` draws, as its arguments say.
struct Distribution {
  enum class Kind : uint8_t { uniform, normal, bernoulli, integer, exponential };
  Kind kind = Kind::uniform;
  double a = 0;  // low; mean; p
  double b = 1;  // high (not included); std
  // exponential: rate 1
};

// Bits of a uniform number that the type holds exactly below 1.
int uniform_bits(at::ScalarType type);

// Fills a contiguous tensor. Throws Error for an element type that has no such numbers.
void fill_random(at::Tensor& out, const Distribution& distribution, const RandomStream& stream,
                 const RandomBlock& block);

// Returns the word below which an element is dropped: a mask keeps words >= this, and none where p
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
