// Signatures of ranks: texts that are equal only for ranks that run the same program, found without
// making the program.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "shard/partition.h"

namespace perigee::compile {

class Signatures {
 public:
  // The plan is kept by reference.
  Signatures(const plan::Plan& plan, const shard::Sharding& sharding, const graph::Graph& graph);

  // Finds the axes on which the first rank does more than the others, or every rank differs
  // (attention to the keys before its queries). `local` returns a hash of a rank's graph; it is
  // called at most twice for each axis of several ranks, from several threads.
  void find_places(const std::function<std::string(int64_t rank)>& local);

  // Return the signature of the rank's graph of all stages, and that of its program.
  std::string without_stage(int64_t rank) const;
  std::string with_stage(int64_t rank) const;

 private:
  // A dim of that size that these axes (by position, ascending) cut into unequal parts.
  struct Cut {
    int64_t size = 0;
    std::vector<int> axes;
    auto operator<=>(const Cut&) const = default;
  };

  enum class Matters : uint8_t { nothing, first, each };

  void add(const std::vector<int64_t>& shape, const mesh::Placements& placements);

  const plan::Plan& plan_;
  std::set<Cut> cuts_;
  std::vector<Matters> matters_;  // by axis: how a rank's position on it changes its program
};

}  // namespace perigee::compile
