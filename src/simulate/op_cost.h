// Times of a program's instructions on a cluster.
#pragma once

#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "compile/program.h"
#include "compile/trace.h"
#include "cost/op_time.h"
#include "mesh/mesh.h"

namespace perigee::simulate {

// Returns the op of an instruction (kind op) with everything that its time depends on.
compile::OpInstance instance_of(const compile::Program& program,
                                const compile::Instruction& instruction);

// Returns the arithmetic and memory traffic of one run.
cost::OpWork work_of(const compile::OpInstance& instance);

// The properties of a collective or copy that its time depends on.
struct Exchange {
  cost::CollectiveKind kind = cost::CollectiveKind::all_reduce;
  compile::Stream stream;
  std::vector<int64_t> ranks;  // of the group, or sender and receiver
  double bytes = 0;            // as cost::collective_seconds counts them
  bool copies = false;         // a copy between the device and its host
};
Exchange exchange_of(const compile::Program& program, const compile::Instruction& instruction,
                     const mesh::Mesh& mesh, int64_t rank);

// Times of instructions, each distinct one computed once. Thread-safe.
class OpCosts {
 public:
  // Keeps both by reference.
  OpCosts(const cost::Cluster& cluster, cost::Measurements& measurements)
      : cluster_(cluster), measurements_(measurements) {}

  // Returns the time of an op or load on the rank's device; 0 for waits.
  cost::Time op(const compile::Program& program, const compile::Instruction& instruction,
                int64_t rank);
  cost::Time collective(const Exchange& exchange);

  const cost::Cluster& cluster() const { return cluster_; }

 private:
  const cost::Cluster& cluster_;
  cost::Measurements& measurements_;
  std::mutex asking_;
  // By device name and instance.
  std::unordered_map<std::string, cost::Time> ops_;
};

}  // namespace perigee::simulate
