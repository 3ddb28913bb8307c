// The place of each stage of a pipeline: its submesh, its devices and the tables of its layers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cost/cluster.h"
#include "search/layers/exchange.h"
#include "search/layers/layers.h"
#include "search/model/limits.h"

namespace perigee::search {

// Returns whether stages are heterogeneous: they have submeshes of different sizes, or several
// kinds of devices.
bool is_heterogeneous(const Choice& choice, const cost::Cluster& cluster);

// Returns the choice with the axes and samples of one stage.
Choice choice_of_stage(const Choice& choice, const Submesh& submesh);

// Returns the submesh of a stage.
Submesh submesh_of(const Choice& choice, int stage);

// Returns the smallest rank whose groups use the same links as those of `rank`.
int64_t equivalent_rank(const cost::Cluster& cluster, int64_t rank);

// Everything that the costs of a stage's blocks depend on.
struct StagePlace {
  Choice choice;  // choice_of_stage()
  const Layers* layers = nullptr;
  StageRanks ranks;
  double limit = 0;  // bytes of a rank
};

// The places of all stages; stages of the same place have the same costs.
struct Places {
  std::vector<StagePlace> list;
  std::vector<int> of;  // by stage: index into the list
  const StagePlace& at(int stage) const { return list[static_cast<size_t>(of[stage])]; }
};

// Returns the places of the choice's stages; nothing where a stage has no table. `layers`: of the
// choice, for homogeneous stages.
std::optional<Places> places_of_stages(const Choice& choice, const Layers& layers,
                                       LayerTables& tables, const cost::Cluster& cluster,
                                       const Limits& limits);

}  // namespace perigee::search
