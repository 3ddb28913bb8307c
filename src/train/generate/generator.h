// Text generation by a trained language model with a cache of keys and values: programs that extend
// the texts of a fixed number of slots.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/task/task.h"

namespace perigee::train {

struct GeneratorOptions {
  std::string checkpoint;  // "": the newest of train.output
  int64_t slots = 1;       // texts at once
  int64_t context = 0;     // most tokens of a text; 0: data.sequence of the job
};

// Not thread-safe.
class Generator {
 public:
  // Loads the model and its weights on one rank. Throws Error for a model without the input "tokens"
  // and the result "logits".
  Generator(const Task& task, const GeneratorOptions& options);
  ~Generator();

  int64_t slots() const;
  int64_t context() const;
  // The number of tokens that the model knows.
  int64_t vocab() const;
  // "", or why each token costs as much as the whole text: the model cannot use a cache.
  const std::string& uncached() const;

  // Makes `text` the slot's text, at most `context` tokens, at least one. What the slot's text and
  // the new one begin with in common is not computed again. Returns the logits [v] after it, on
  // the CPU.
  at::Tensor fill(int64_t slot, std::span<const int64_t> text);

  // Appends a token to the text of each slot, whose text is shorter than `context`; nothing: the
  // slot stays as it is. Returns the logits [slots, v] on the CPU, undefined for such slots.
  at::Tensor extend(std::span<const std::optional<int64_t>> tokens);

  const std::vector<int64_t>& text(int64_t slot) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perigee::train
