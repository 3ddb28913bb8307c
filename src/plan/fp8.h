// Linear layers whose operands are rounded to FP8 (Micikevicius et al. 2022). Methods write these
// settings, compile/graph/fp8.cc applies them. Names and defaults are Megatron's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace perigee::plan {

struct Fp8 {
  enum class Format : uint8_t {
    e4m3,    // all operands: largest number 448
    hybrid,  // E4M3 for inputs and weights, E5M2 (57344) for gradients
  };
  // Where an operand's scale comes from. It maps the largest magnitude, times 2^margin, to the
  // format's largest number.
  enum class Recipe : uint8_t {
    delayed,     // one scale per tensor, from the magnitudes of earlier microbatches
    tensorwise,  // one scale per tensor, from its current magnitude
    rowwise,     // one scale for all elements along the dim that is summed over
    blockwise,  // one scale for each `block` consecutive elements along the dim that is summed over
  };
  enum class Amax : uint8_t { most_recent, max };
  // How two eight-bit factors are multiplied.
  enum class Product : uint8_t {
    emulated,  // cast back to their original type and multiplied in it
    native,    // by the device (aten::_scaled_mm) where the sizes allow it, else emulated
  };

  Format format = Format::e4m3;
  Recipe recipe = Recipe::delayed;
  int64_t margin = 0;
  int64_t amax_history_len = 1;  // delayed: microbatches
  int64_t interval = 1;          // delayed: microbatches that a scale serves
  // Delayed: the most recent entry of the history, or its maximum.
  Amax amax_compute_algo = Amax::most_recent;
  int64_t block = 128;  // blockwise
  // Whether the ranks of a sharded tensor share one scale; else each rank's scale is that of
  // its shard.
  bool reduce_amax = true;
  bool wgrad = true;                // whether operands of weight-gradient products are rounded, too
  std::vector<std::string> scopes;  // of the linear layers; empty: all
  Product product = Product::emulated;
  bool operator==(const Fp8&) const = default;
};

// Returns "e4m3", "hybrid"; "delayed", ...; "most_recent", "max"; "emulated", "native".
std::string_view name_of(Fp8::Format format);
std::string_view name_of(Fp8::Recipe recipe);
std::string_view name_of(Fp8::Amax amax);
std::string_view name_of(Fp8::Product product);

// Returns whether a tensor has one scale, rather than one for each row or block.
bool scales_tensors(Fp8::Recipe recipe);

// Throws Error for a number out of range, scales per rank with a recipe that does not scale tensors,
// native products with blockwise scales or with scales per rank, or a scope that is listed twice or
// missing in the graph.
void verify(const Fp8& fp8, const graph::Graph& graph);

}  // namespace perigee::plan
