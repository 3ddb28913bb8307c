// Conversion of exec's descriptions of random numbers to those of the kernels.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <iterator>

#include "base/fail.h"
#include "cuda/kernels/random.h"
#include "exec/ops/random.h"

namespace perigee::cuda {

// Throws Error for a block that is cut in more dims than kernels support.
inline RandomPlace place_of(const exec::RandomStream& stream, const exec::RandomBlock& block) {
  const auto& sizes = block.outer();
  if (std::ssize(sizes) > kMostRandomDims) {
    fail("exec", "a random op's block may be cut in at most {} dims on a GPU, but is cut in {}",
         kMostRandomDims, sizes.size());
  }
  RandomPlace place{.seed = stream.seed,
                    .key = stream.key,
                    .step = stream.step,
                    .step_in_memory = stream.step_in_memory,
                    .numel = block.numel(),
                    .run = std::max<int64_t>(block.run(), 1),
                    .offset = block.offset(),
                    .dims = static_cast<int32_t>(sizes.size())};
  std::copy(sizes.begin(), sizes.end(), place.sizes);
  std::copy(block.outer_strides().begin(), block.outer_strides().end(), place.strides);
  return place;
}

// Throws Error where the distribution does not exist for the type.
inline Drawing drawing_of(const exec::Distribution& d, c10::ScalarType type) {
  using Kind = exec::Distribution::Kind;
  const bool floating = c10::isFloatingType(type);
  const auto need_floating = [&] {
    if (!floating) {
      fail("exec", "this distribution requires a floating point type, but got {}",
           c10::toString(type));
    }
  };
  Drawing drawing;
  switch (d.kind) {
    case Kind::uniform:
      need_floating();
      drawing.kind = Drawing::uniform;
      drawing.a = d.a;
      drawing.b = d.b - d.a;
      drawing.bits = exec::uniform_bits(type);
      break;
    case Kind::normal:
      need_floating();
      drawing.kind = Drawing::normal;
      drawing.a = d.a;
      drawing.b = d.b;
      break;
    case Kind::exponential:
      need_floating();
      drawing.kind = Drawing::exponential;
      drawing.bits = exec::uniform_bits(type);
      break;
    case Kind::bernoulli:
      drawing.kind = Drawing::bernoulli;
      drawing.threshold = exec::drop_threshold(d.a);
      break;
    case Kind::integer:
      drawing.kind = Drawing::integer;
      drawing.low = static_cast<int64_t>(d.a);
      drawing.range = static_cast<uint64_t>(static_cast<int64_t>(d.b) - drawing.low);
      break;
  }
  return drawing;
}

}  // namespace perigee::cuda
