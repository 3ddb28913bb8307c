// The stages of a pipeline that have each of a graph's inputs.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::compile {

// Returns, by value, the stages whose ops use it, through ops of every part too; of a buffer also
// the stage that makes its new value. `parts` by node (plan::parts_of), `stages` by part; nodes in
// `without` use nothing.
std::vector<std::set<int64_t>> users_of(const graph::Graph& graph, const std::vector<int>& parts,
                                        const std::vector<int>& stages,
                                        const std::vector<bool>& without = {});

// Throws Error for a buffer that the graph writes, unless one part alone reads and writes it: other
// stages would have other values of it, and parts of one stage alternate over microbatches.
void require_buffers_of_one_part(const graph::Graph& graph, const std::vector<int>& parts,
                                 const std::vector<int>& stages);

// The stages that have each parameter, buffer, constant and data input of a whole graph. Keeps the
// plan by reference. Without a pipeline every rank has all.
class StageInputs {
 public:
  StageInputs(const graph::Graph& graph, const plan::Plan& plan);
  bool has(const std::string& name, int64_t rank) const;
  // Returns whether several stages have the input.
  bool is_shared(const std::string& name) const;
  // Returns whether it is left out of its unit: several stages have it, or several parts of one
  // stage contribute to its gradient, which would then be reduced for each microbatch.
  bool stays_whole(const std::string& name) const;
  // Returns the graph without nodes and with only those inputs of the rank's stage that units may
  // shard; without a pipeline, with all inputs.
  graph::Graph own(const graph::Graph& graph, int64_t rank) const;

 private:
  const plan::Plan& plan_;
  std::map<std::string, std::set<int64_t>> stages_;  // by name
  std::set<std::string> whole_;
};

}  // namespace perigee::compile
