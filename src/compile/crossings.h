// What crosses between stages of unequal submeshes: each end has it as its own mesh says.
//
// Every rank's graph is made as if all stages lay on the rank's own submesh. So that both ends know
// a value that crosses by one name, an op of the whole graph stands for its way to each part of
// another stage (plan::kCross); the value is not Partial there. The boxes in which senders and
// receivers hold it then say who sends what.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "mesh/mesh.h"
#include "mesh/placement.h"
#include "plan/plan.h"
#include "shard/partition.h"

namespace perigee::compile {

// A box of a value that one rank sends to another.
struct CrossingPiece {
  int64_t from = 0, to = 0;         // ranks
  std::vector<mesh::Range> ranges;  // of the whole value
  // "pipe:0.1>1.0/0>1": from the second rank of stage 0 to the first of stage 1, from part 0 to
  // part 1.
  std::string stream;
};

// A value that one part of a pipeline makes and a part of another stage uses.
struct Crossing {
  graph::TensorType type;    // of the whole value
  int maker = 0, user = 0;   // parts
  int64_t from = 0, to = 0;  // their stages
  graph::ValueId result;     // of the op, in the marked graph
  std::string what;          // is made there: op and scope
  mesh::Placements sent, received;
  // What each receiver's box takes of the boxes of the senders, whose replicas take turns with the
  // receivers. By receiver in mesh order, then by box; both ends come to them in this order.
  std::vector<CrossingPiece> pieces;
};

struct Crossings {
  mesh::Mesh mesh;  // ragged
  std::vector<Crossing> list;
  std::set<std::pair<int, int>> edges;  // parts of which the second uses what the first makes
};

// Returns the graph with kCross behind what makes a value that crosses, one for each part that uses
// it (argument `crossing`: index into Crossings::list). What several stages add up for a gradient
// does not cross. Sets all of the crossings but their placements and pieces.
graph::Graph mark_crossings(const graph::Graph& graph, const plan::Plan& plan,
                            Crossings& crossings);

// Sets how the ends that are on `stage` have what crosses; `own`: as its graph names it. Throws
// Error where the stages' graphs differ in what crosses.
void place_ends(Crossings& crossings, const Crossings& own, const graph::Graph& marked,
                const shard::Sharding& sharding, int64_t stage);

// Sets the pieces of crossings whose ends are placed.
void find_pieces(Crossings& crossings);

// What a rank sends and receives: its messages' streams, each where it first comes to it, and a
// text that is equal for ranks of a stage whose messages differ in their streams' names alone.
struct RankMessages {
  std::vector<std::string> streams;
  std::string text;
};
// Returns them by rank, of ranks that have any.
std::map<int64_t, RankMessages> messages_of(const Crossings& crossings);

// Appends a node; returns what it makes, if anything.
using AppendNode =
    std::function<graph::ValueId(const char* op, std::vector<std::pair<std::string, graph::Arg>>,
                                 std::vector<graph::TensorType>)>;

// Appends to the rank's graph what sends its boxes of the value, which lies there as it is sent. A
// rank that sends none has kCross there, without results.
void send_pieces(const Crossing& crossing, const mesh::Mesh& mesh, int64_t rank,
                 graph::ValueId value, const graph::Graph& graph, const AppendNode& append);

// Appends what receives the rank's boxes and puts them together; returns the value, of that local
// type.
graph::ValueId receive_pieces(const Crossing& crossing, int64_t rank, const graph::TensorType& type,
                              const graph::Graph& graph, const AppendNode& append);

}  // namespace perigee::compile
