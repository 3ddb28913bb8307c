// Storage of units' parameters: one flat tensor per unit and dtype, cut into equal parts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "mesh/placement.h"
#include "plan/plan.h"

namespace perigee::plan {

// A unit's parameters of one dtype that are sharded on the same axes (by their placements), as one
// rank stores them. Depends on the plan, the parameters' types and the rank only, so that training
// and evaluation agree. Offsets are in elements from the start of the flat tensor.
struct FlatUnit {
  struct Member {
    std::string name;
    std::vector<int64_t> shape;       // this rank's shape, before it is cut over the unit's axes
    std::vector<mesh::Range> ranges;  // this rank's range of each dim of the whole parameter
    int64_t offset = 0;
    int64_t elements = 0;
  };
  const Unit* unit = nullptr;
  std::string name;  // the unit's, numbered where it has several
  graph::DType dtype = graph::DType::float32;
  mesh::AxisSet shard_axes;  // the members are sharded on these
  std::vector<Member> members;
  int64_t elements = 0;  // of the members together
  int64_t parts = 1;     // ranks on the unit's axes
  int64_t part = 0;      // elements of one part; parts * part >= elements
  int64_t begin = 0;     // this rank's part is [begin, begin + part)
  // Whether a rank stores only its part of the parameters: units of level 3, and other levels where
  // ops read float32 masters in a low precision. Of the latter (gathered_once), the first
  // microbatch of a step gathers the low-precision values, which the rank keeps for the step.
  bool in_parts = false;
  bool gathered_once = false;
  // Returns the number of elements of this rank's part, without padding.
  int64_t held() const;
};

// Returns whether the unit stores float32 parameters in parts (FlatUnit::in_parts).
bool stores_parts(const Plan& plan, const Unit& unit);

// Returns why ranks cannot hold one copy of the parameters of a unit of this level
// (Unit::one_copy), or "".
std::string_view why_no_one_copy(const Plan& plan, int level);

// Returns whether the parameter is in a unit.
bool is_in_unit(const Plan& plan, const std::string& parameter);

// Returns the flat tensors of all units that have several ranks on their axes, in the plan's order.
std::vector<FlatUnit> flats(const Plan& plan, const graph::Graph& graph, int64_t rank);

// Returns the pieces of the member in this rank's part: boxes (one range per dim) of the whole
// parameter, each contiguous in the flat tensor, with its offset in the flat tensor.
struct FlatPiece {
  int64_t offset = 0;
  std::vector<mesh::Range> ranges;
  std::vector<int64_t> shape() const;
};
std::vector<FlatPiece> pieces_of(const FlatUnit& flat, const FlatUnit::Member& member);

// Returns the boxes whose elements, one box after the other, are [begin, end) of a row-major tensor
// of that shape.
std::vector<std::vector<mesh::Range>> boxes(const std::vector<int64_t>& shape, int64_t begin,
                                            int64_t end);

}  // namespace perigee::plan
