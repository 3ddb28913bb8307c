// Shardings, storage in parts, recomputation and offload under a limit of memory, chosen together:
// each block of the model takes one of the shardings that are best at some price of memory, one way
// to store its parameters, and one to have what its backward pass reads. Shardings are found with
// blocks that repeat as two that take turns (assignment.h); which a block takes is its own choice.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"
#include "shard/assignment.h"
#include "shard/holds.h"

namespace perigee::shard {

struct FitOptions {
  AssignmentOptions assignment;
  double microbatches = 1;
  double state_share = 2;  // bytes of optimizer state for a byte of a parameter
  // Ranks that average gradients, and what a byte costs that is moved between them, in bytes moved
  // over the axes that are planned.
  double parts = 1, part_byte = 1;
  bool store = true;      // each of these may store a part of the parameters
  double host_byte = 18;  // the same of a byte that is copied to the host's memory, or back
  bool again = true;      // blocks may run again
  bool offload = true;    // what blocks keep for the backward pass may lie on the host
  std::function<bool(const graph::Input&)> trains;  // whether a parameter is trained
};

// How a block is run: its scope, "" for what is in none.
struct BlockFit {
  std::string scope;
  int level = 0;  // of storage in parts, as plan::Unit has it; 0: whole
  bool again = false, offload = false;
  bool operator==(const BlockFit&) const = default;
};

struct Fitted {
  std::vector<mesh::Placements> lying;  // per value, on the axes that are planned
  std::vector<BlockFit> blocks;
  std::map<std::string, int> stored_with;  // by parameter: index into blocks
  // Of a microbatch on a rank, in bytes moved; what it needs at most; no other choice costs less.
  double cost = 0, memory = 0, bound = 0;
};

class Fitting {
 public:
  // Finds what blocks may take. All references must outlive this. Throws Error where there is no
  // way to run the graph.
  Fitting(const graph::Graph& graph, const plan::Plan& plan, std::vector<int> axes,
          const FitOptions& options);
  ~Fitting();

  // Returns the cheapest choice that needs no more bytes, as counted here (nothing: it may need
  // any); nothing where there is none.
  std::optional<Fitted> fit(std::optional<double> memory) const;
  // Returns about the bytes that the choice which needs the least takes.
  double least_memory() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perigee::shard
