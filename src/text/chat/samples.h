// Conversations as samples of one length, in a safetensors file that data.tensors of a job takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/chat/conversation.h"

namespace perigee::text {

// The label of a token that is not learned (ignore_index of PyTorch's losses).
constexpr int64_t kIgnored = -100;

// Samples of `sequence` tokens, one for each conversation. labels[i] is token i + 1 where that is of
// an answer, else kIgnored. After a conversation's end, tokens are 0 and labels kIgnored; a longer
// conversation is cut.
class Samples {
 public:
  explicit Samples(int64_t sequence) : sequence_(sequence) {}

  // Ids must be below 2^32. A conversation with no answer before it is cut is left out.
  void add(const Document& conversation);

  // Writes "tokens" and "labels" (int64, [samples, sequence]). Throws Error where there is no
  // sample, or the file cannot be written.
  void write(const std::string& path) const;

  int64_t size() const { return int64_t(ends_.size()); }
  int64_t cut() const { return cut_; }            // samples of longer conversations
  int64_t left_out() const { return left_out_; }  // conversations without a sample
  int64_t learned() const { return learned_; }    // tokens of answers

 private:
  int64_t sequence_;
  // Of all samples one after the other, up to sequence + 1 tokens each.
  std::vector<uint32_t> ids_;
  std::vector<bool> of_answers_;
  std::vector<size_t> ends_;
  int64_t cut_ = 0, left_out_ = 0, learned_ = 0;
};

}  // namespace perigee::text
