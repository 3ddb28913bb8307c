// Emits arithmetic on one rank's values, for lowerings that rewrite an op. Result types follow from
// the operands.
#pragma once

#include <string>
#include <vector>

#include "shard/rules/rule_lowering.h"

namespace perigee::shard {

class Emitter {
 public:
  explicit Emitter(RuleLowering& lowering) : lowering_(lowering) {}

  const graph::TensorType& type(graph::ValueId v) const { return lowering_.type(v); }
  graph::ValueId full(double value, graph::TensorType type);
  // Returns the range of a dim; v itself if it is the whole dim.
  graph::ValueId slice(graph::ValueId v, int64_t dim, mesh::Range piece);
  // Concatenates tensors along a dim; returns a single tensor unchanged.
  graph::ValueId cat(const std::vector<graph::ValueId>& tensors, int64_t dim);
  // Returns v itself if it has the dtype.
  graph::ValueId cast(graph::ValueId v, graph::DType dtype);
  graph::ValueId reshape(graph::ValueId v, std::vector<int64_t> shape);
  // Returns v with a last dim of size 1.
  graph::ValueId column(graph::ValueId v);
  graph::ValueId unary(const char* op, graph::ValueId v);
  // `other` is a number.
  graph::ValueId scalar(const char* op, graph::ValueId v, graph::Arg other);
  // Broadcasts; the dtype is a's.
  graph::ValueId binary(const char* op, graph::ValueId a, graph::ValueId b);
  // Compares with a number.
  graph::ValueId compare(const char* op, graph::ValueId v, int64_t other);
  // Returns v where the condition holds and 0 elsewhere. The condition broadcasts to v.
  graph::ValueId keep(graph::ValueId condition, graph::ValueId v);
  // Reduces one dim, which the result lacks.
  graph::ValueId reduce(const char* op, graph::ValueId v, int64_t dim);
  graph::ValueId all_reduce(graph::ValueId v, const std::string& axes, const char* op);

  // Global indices relative to a shard of the indexed dim.
  struct Local {
    graph::ValueId inside;  // boolean: the shard holds the index
    graph::ValueId index;   // position in the shard; a valid one also where not inside
  };
  // `size`: of the dim. An index that is not in the dim is valid in no shard: the op that reads it on
  // the first or the last one refuses it. 0: it becomes a valid one.
  Local local_index(graph::ValueId index, const mesh::Range& shard, int64_t size = 0);

 private:
  RuleLowering& lowering_;
};

}  // namespace perigee::shard
