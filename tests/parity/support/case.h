// Graphs of one op for the tests of sharding rules, with random placements on a random mesh.
#pragma once

#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "exec/reference/reference.h"
#include "graph/graph.h"
#include "mesh/mesh.h"
#include "plan/plan.h"

namespace perigee::parity {

using Args = std::vector<std::pair<std::string, graph::Arg>>;
using Shape = std::vector<int64_t>;

// Builds a graph and its unsharded values at once. Operands are replicated, sharded or, where real,
// Partial: then they are the sum of an input that is sharded on an extra dim.
class Case {
 public:
  explicit Case(uint64_t seed);

  // A size from 1 to `most`, mostly small and uneven.
  int64_t size(int64_t most = 7);
  // One of the numbers from low to high.
  int64_t any(int64_t low, int64_t high);
  bool coin(double probability = 0.5);
  // Up to `most` sizes.
  Shape sizes(int most, int least = 0);
  // The dim, counted from the front or from the back.
  int64_t either_way(int64_t dim, int64_t rank);

  graph::ValueId real(const Shape& shape, bool may_be_partial = true);
  graph::ValueId positive(const Shape& shape);
  graph::ValueId integers(const Shape& shape, int64_t low, int64_t high);
  graph::ValueId booleans(const Shape& shape);
  // Reals whose dim is sharded on the axis, in the same way for all with the same `zigzag`; any
  // placement on other axes.
  graph::ValueId real_sharded(const Shape& shape, int dim, size_t axis, bool zigzag);
  // Reals with these placements.
  graph::ValueId real_placed(const Shape& shape, const mesh::Placements& placements);
  // A value that is the same on all ranks and has this content.
  graph::ValueId given(const at::Tensor& tensor);

  // Adds the op under test. Result types are LibTorch's, or `types` for ops that require them.
  std::vector<graph::ValueId> call(const std::string& op, Args args, int results = 1);
  std::vector<graph::ValueId> typed(const std::string& op, Args args,
                                    std::vector<graph::TensorType> types);

  const at::Tensor& value(graph::ValueId v) const { return known_[v.index]; }
  Shape shape(graph::ValueId v) const { return graph_.type(v).shape; }

  // Returns "" if sharded execution gives the same results, else the first difference. Sets
  // `effective` if some rank ran the op on a part.
  std::string run(bool& effective, const std::map<std::string, std::string>& rules = {});
  // The drawn case, for messages.
  std::string text() const;

  graph::Graph graph_;
  mesh::Mesh mesh_;

 private:
  mesh::Placements draw_placements(const Shape& shape, bool may_be_partial);
  // Shards dims in runs where the sizes allow it.
  void cut_in_runs(mesh::Placements& placements, const Shape& shape);
  // An input redistributed to the boundaries of runs, or the input itself.
  graph::ValueId moved(graph::ValueId v);
  graph::ValueId input(const at::Tensor& tensor, const mesh::Placements& placements);
  graph::ValueId placed(const at::Tensor& tensor);

  std::mt19937_64 random_;
  std::vector<at::Tensor> known_;  // per value
  exec::Tensors inputs_;
  std::map<int32_t, mesh::Placements> pins_;  // by value
  graph::Graph first_local_;
  std::vector<size_t> tested_;  // nodes under test
};

using Build = std::function<void(Case&)>;

}  // namespace perigee::parity
