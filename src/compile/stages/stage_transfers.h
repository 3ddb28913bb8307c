// Values that cross between stages of unequal submeshes; each end has the placement of its
// own mesh.
//
// Every rank's graph is made as if all stages were on the rank's own submesh. So that both ends
// name a crossing value identically, an op of the whole graph represents its transfer to each part
// of another stage (plan::kCross); the value is not Partial there. The intersections of the
// senders' and the receivers' boxes are the messages.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compile/stream.h"
#include "graph/graph.h"
#include "mesh/mesh.h"
#include "mesh/placement.h"
#include "plan/plan.h"
#include "shard/partition.h"

namespace perigee::compile {

// A box of a value that one rank sends to another.
struct TransferPiece {
  int64_t from = 0, to = 0;         // ranks
  std::vector<mesh::Range> ranges;  // of the whole value
  Stream stream;                    // a message
};

// A value that one part of a pipeline makes and a part of another stage uses.
struct StageTransfer {
  graph::TensorType type;    // of the whole value
  int maker = 0, user = 0;   // parts
  int64_t from = 0, to = 0;  // their stages
  graph::ValueId result;     // of the op, in the marked graph
  std::string what;          // op and scope of the node that makes the value
  mesh::Placements sent, received;
  // Intersections of each receiver's box with the senders' boxes; replicas of a sender alternate
  // over the receivers. By receiver in mesh order, then by box: the order of messages on both ends.
  std::vector<TransferPiece> pieces;
};

struct StageTransfers {
  mesh::Mesh mesh;  // ragged
  std::vector<StageTransfer> list;
  std::set<std::pair<int, int>> edges;  // parts of which the second uses results of the first
};

// Returns the graph with a kCross after each op that makes a crossing value, one for each part that
// uses it (argument `crossing`: index into StageTransfers::list). Contributions of several stages
// to a gradient do not cross. Sets the transfers except their placements and pieces.
graph::Graph mark_transfers(const graph::Graph& graph, const plan::Plan& plan,
                            StageTransfers& transfers);

// Sets the placements of the ends that are on `stage`; `own`: the transfers in that stage's graph.
// Throws Error where the stages' graphs differ in their transfers.
void place_ends(StageTransfers& transfers, const StageTransfers& own, const graph::Graph& marked,
                const shard::Sharding& sharding, int64_t stage);

// Sets the pieces of transfers whose ends are placed.
void find_pieces(StageTransfers& transfers);

// The messages of a rank: their streams, in the order of first use, and a text that is equal for
// ranks of a stage whose messages differ only in the streams' names.
struct RankMessages {
  std::vector<Stream> streams;
  std::string text;
};
// Returns the messages by rank, of ranks that have any.
std::map<int64_t, RankMessages> messages_of(const StageTransfers& transfers);

// Appends a node; returns its result, if it has one.
using AppendNode =
    std::function<graph::ValueId(const char* op, std::vector<std::pair<std::string, graph::Arg>>,
                                 std::vector<graph::TensorType>)>;

// Appends the sends of the rank's boxes of the value, which has the sender's placement. A rank that
// sends none gets a kCross without results.
void send_pieces(const StageTransfer& transfer, const mesh::Mesh& mesh, int64_t rank,
                 graph::ValueId value, const graph::Graph& graph, const AppendNode& append);

// Appends the receives of the rank's boxes and their assembly; returns the value, of that
// local type.
graph::ValueId receive_pieces(const StageTransfer& transfer, int64_t rank,
                              const graph::TensorType& type, const graph::Graph& graph,
                              const AppendNode& append);

}  // namespace perigee::compile
