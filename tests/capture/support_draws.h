// Eager LibTorch with the random numbers of a captured graph.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

#include "exec/ops/op.h"
#include "graph/graph.h"

namespace perigee::test {

// During its lifetime, eager dropout, bernoulli_, rrelu and rand of this thread use the draws
// of a graph's forward phase, in order, instead of LibTorch's generator. A draw beyond the
// graph's throws.
class ReplayedDraws {
 public:
  explicit ReplayedDraws(const graph::Graph& graph, const exec::Draw& draw = {});
  ~ReplayedDraws();
  ReplayedDraws(const ReplayedDraws&) = delete;
  ReplayedDraws& operator=(const ReplayedDraws&) = delete;

  // Returns whether every draw of the graph was used.
  bool all_taken() const { return next_ == draws_.size(); }

  // Returns the next draw for a tensor of that shape: numbers of perigee::random, or 0 and
  // 1 / (1 - p) of a dropout.
  at::Tensor take(const at::Tensor& like);

 private:
  std::vector<exec::Op> draws_;
  size_t next_ = 0;
  exec::Draw draw_;
  c10::impl::IncludeDispatchKeyGuard key_;
};

}  // namespace perigee::test
