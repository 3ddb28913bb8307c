// Kinds of ops that matter to how a loss depends on samples.
#pragma once

#include "graph/graph.h"

namespace perigee::shard {

inline bool is_mean(const graph::Node& node) {
  return node.op == "aten::mean" || node.op == "aten::mean.dim";
}

// Ops that scatter rows to indexed positions, or count them.
inline bool dispatches(const graph::Node& node) {
  return node.op == "perigee::dispatch" || node.op == "perigee::expert_slots" ||
         node.op == "aten::index_add" || node.op.starts_with("aten::index_put") ||
         node.op.starts_with("aten::scatter");
}

inline bool is_affine(const graph::Node& node) {
  return node.op == "aten::add.Tensor" || node.op == "aten::sub.Tensor" ||
         node.op == "aten::rsub.Tensor" || node.op == "aten::add.Scalar" ||
         node.op == "aten::sub.Scalar" || node.op == "aten::rsub.Scalar";
}

}  // namespace perigee::shard
