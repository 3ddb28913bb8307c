// The choice of the next token from a model's logits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <random>
#include <span>

#include "train/task/draw_options.h"

namespace perigee::train {

class TokenDraw {
 public:
  explicit TokenDraw(const DrawOptions& options);

  // Returns a token from logits [v] on the CPU, after the tokens `text`. The same calls of two
  // objects with equal options return the same tokens.
  int64_t next(const at::Tensor& logits, std::span<const int64_t> text);

 private:
  DrawOptions options_;
  std::mt19937_64 random_;
};

}  // namespace perigee::train
