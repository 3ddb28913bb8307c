// Frequencies of rotary positions, as transformers computes them from a config.
#pragma once

#include <cstdint>
#include <vector>

#include "capture/models/hf/architecture.h"

namespace perigee::hf {

struct RopeTable {
  std::vector<double> frequencies;  // [head_size / 2], radians a token
  double scale = 1;                 // of cos and sin
};

// Returns the table for samples of `sequence` tokens. Linear and dynamic scaling: Chen et al. 2023
// and its NTK-aware variants; yarn: Peng et al. 2023; longrope: Ding et al. 2024; llama3: Dubey et
// al. 2024.
RopeTable rope_table(const Architecture& architecture, int64_t sequence);

// Returns the most tokens for which the table is the same for every length; 0: any number. Beyond,
// dynamic and longrope scaling depend on the longest position.
int64_t longest_of_one_table(const Architecture& architecture);

}  // namespace perigee::hf
