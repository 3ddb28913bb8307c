// Text generation by a trained language model with a cache of keys and values: programs that extend
// the texts of a fixed number of slots.
//
// On several ranks each has one, and all of them run the same programs on all slots, with their
// parts of the weights and caches. Rank 0 uses its own as on a single rank, and its calls are
// repeated on the others:
//
//   Generator generator(task, options, connection, traces);
//   if (connection.communicator->rank() != 0) return generator.serve_commands();
//   ... generator.fill(...) ... generator.extend(...) ...
//   generator.end();
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compile/trace.h"
#include "train/generate/decode_model.h"
#include "train/ranks/connect.h"
#include "train/task/task.h"

namespace perigee::train {

// Not thread-safe.
class Generator {
 public:
  // Loads the model and its weights on one rank, without a strategy. Throws Error for
  // a model without the input "tokens"
  // and the result "logits".
  Generator(const Task& task, const GeneratorOptions& options);
  // Loads this rank's part of them by the task's strategy (open_decode_model). All ranks of the
  // connection call it with the same options. `traces` must outlive the generator.
  Generator(const Task& task, const GeneratorOptions& options, Connection connection,
            compile::TraceSource& traces);
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

  // Runs `work`, such as waiting for a user, which may take longer than the ranks' time-out.
  // Rank 0 calls it.
  void wait(const std::function<void()>& work);
  // Ends serve_commands() on the other ranks. Rank 0's last call.
  void end();
  // On another rank than 0: repeats the calls of rank 0's generator until that ends.
  void serve_commands();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perigee::train
