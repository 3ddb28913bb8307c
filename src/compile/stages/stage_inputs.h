// Which stages of a pipeline have a graph's inputs.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::compile {

// Returns, by value, the stages whose ops use it, through ops of every part too. `parts` by node
// (plan::parts_of), `stages` by part; nodes in `without` use nothing.
std::vector<std::set<int64_t>> users_of(const graph::Graph& graph, const std::vector<int>& parts,
                                        const std::vector<int>& stages,
                                        const std::vector<bool>& without = {});

// Which stages have each parameter, buffer, constant and data input of a whole graph. The plan is
// kept by reference. Without a pipeline every rank has all.
class StageInputs {
 public:
  StageInputs(const graph::Graph& graph, const plan::Plan& plan);
  bool has(const std::string& name, int64_t rank) const;
  // Returns whether several stages have it.
  bool is_shared(const std::string& name) const;
  // Returns whether it is in no unit, whatever the plan says: several stages have it, or several
  // parts of one make gradients of it that would be reduced for each microbatch.
  bool stays_whole(const std::string& name) const;
  // Returns the graph without nodes and with those inputs of the rank's stage alone that units may
  // cut. All of them without a pipeline.
  graph::Graph own(const graph::Graph& graph, int64_t rank) const;

 private:
  const plan::Plan& plan_;
  std::map<std::string, std::set<int64_t>> stages_;  // by name
  std::set<std::string> whole_;
};

}  // namespace perigee::compile
