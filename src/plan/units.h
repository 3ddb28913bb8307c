// Where the parameters of units lie: one flat tensor a unit and type, cut into equal parts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "mesh/placement.h"
#include "plan/plan.h"

namespace perigee::plan {

// A unit's parameters of one dtype that are sharded on the same axes (by their placements), as one
// rank holds them. Follows from plan, parameters' types and rank alone, so training and evaluation
// agree. Elements are counted from the start of the flat tensor.
struct Flat {
  struct Member {
    std::string name;
    std::vector<int64_t> shape;       // on this rank, whole on the unit's axes
    std::vector<mesh::Range> ranges;  // of the whole parameter
    int64_t offset = 0;
    int64_t elements = 0;
  };
  const Unit* unit = nullptr;
  std::string name;  // the unit's, numbered where it has several
  graph::DType dtype = graph::DType::float32;
  std::string shard_axes;  // the members are sharded on these, comma separated
  std::vector<Member> members;
  int64_t elements = 0;  // of the members together
  int64_t parts = 1;     // ranks on the unit's axes
  int64_t part = 0;      // elements of one part; parts * part >= elements
  int64_t begin = 0;     // this rank's part is [begin, begin + part)
  // Whether a rank stores its part of the parameters alone: of level 3, and of the others where ops
  // read float32 masters in a low precision. Those are whole in that precision while a step runs:
  // gathered once, by its first microbatch.
  bool in_parts = false;
  bool gathered_once = false;
  // Elements of this rank's part that are no padding.
  int64_t held() const;
};

// Returns whether a unit of that level stores float32 parameters in parts (Flat::in_parts), read in
// the low precision where there is one.
bool stores_parts(const Plan& plan, const Unit& unit);

// Returns the flat tensors of all units that have several ranks on their axes, in the plan's order.
std::vector<Flat> flats(const Plan& plan, const graph::Graph& graph, int64_t rank);

// Returns which pieces of the member the rank holds where the flat tensor is cut: boxes (a range
// per dim) of the whole parameter, each contiguous in the flat tensor, with where it begins there.
struct FlatPiece {
  int64_t offset = 0;
  std::vector<mesh::Range> ranges;
  std::vector<int64_t> shape() const;
};
std::vector<FlatPiece> pieces_of(const Flat& flat, const Flat::Member& member);

// Returns the boxes whose elements, one box after the other, are [begin, end) of a row-major tensor
// of that shape.
std::vector<std::vector<mesh::Range>> boxes(const std::vector<int64_t>& shape, int64_t begin,
                                            int64_t end);

}  // namespace perigee::plan
