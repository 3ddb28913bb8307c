// Eager LibTorch with the random numbers of a captured graph.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

#include "exec/ops/op.h"
#include "graph/graph.h"

namespace perigee::test {

// While one lives, this thread's eager dropout, bernoulli_, rrelu and rand take the draws of the
// forward phase of a graph, in order, in the place of LibTorch's generator. A draw that the graph
// has none for throws.
class ReplayedDraws {
 public:
  explicit ReplayedDraws(const graph::Graph& graph, const exec::Draw& draw = {});
  ~ReplayedDraws();
  ReplayedDraws(const ReplayedDraws&) = delete;
  ReplayedDraws& operator=(const ReplayedDraws&) = delete;

  // Returns whether every draw of the graph was taken.
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
