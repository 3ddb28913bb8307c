// How tokens are drawn from a model's logits. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace perigee::train {

struct DrawOptions {
  double temperature = 1;  // logits are divided by it; 0: the likeliest token
  int64_t top_k = 0;       // only the k likeliest tokens; 0: all
  double top_p = 1;        // only the likeliest tokens whose probabilities add up to p
  // Logits of tokens that the text has are divided by it where they are positive, and multiplied by
  // it where they are negative (Keskar et al. 2019); 1: unchanged.
  double repetition_penalty = 1;
  uint64_t seed = 0;
};

struct WrongOption {
  std::string name;
  std::string message;  // "top_p must be ..."
};

// Returns the first option that is out of range, or nothing.
std::optional<WrongOption> wrong_option(const DrawOptions& options);

// Throws Error naming the option that is out of range.
void check(const DrawOptions& options);

}  // namespace perigee::train
