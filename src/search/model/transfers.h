// Messages between the stages of a pipeline: activations forwards, their gradients backwards.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "search/layers/layers.h"
#include "search/model/stage/places.h"
#include "simulate/op_cost.h"

namespace perigee::search {

// The seconds of a microbatch's messages between two neighbouring stages.
struct MessageSeconds {
  double forward = 0, backward = 0;
  double both() const { return forward + backward; }
};

// Two neighbouring stages, each on a submesh of its own.
struct Neighbours {
  Submesh from, to;
  int64_t first_rank = 0;  // of `from`
};

class Transfers {
 public:
  // Keeps both by reference.
  Transfers(LayerTables& tables, simulate::OpCosts& costs) : tables_(tables), costs_(costs) {}

  // Returns the seconds of the messages between two submeshes. `layers`: of the stage on
  // Neighbours::from, for its samples a rank.
  MessageSeconds between(const Choice& choice, const Neighbours& neighbours,
                         const Layers& layers) const;

  // Returns the mean seconds of a message between two homogeneous stages.
  double mean_message(const Choice& choice, const Layers& layers) const;

  // Returns the seconds of a microbatch's messages between a stage and the next.
  MessageSeconds to_next(const Choice& choice, const Places& places, int stage) const;

  // Returns the seconds of a microbatch's messages through all stages and back, one after
  // the other.
  double round_trip(const Choice& choice, const Places& places) const;

  // Returns the seconds of an all-reduce of a scalar over all stages (the gradients' norm).
  double scalar_all_reduce(const Choice& choice) const;

 private:
  // The value that a block of a submesh sends to the next block.
  struct BlockOutput {
    double bytes = 0;          // of a data rank's samples
    double sharded_ratio = 0;  // share of the bytes that is sharded over tensor ranks
  };
  BlockOutput block_output(const Choice& choice, const Submesh& submesh) const;
  // Returns a sending rank for each level of links between stages of `ranks` ranks, and the number
  // of stages that send over that level.
  const std::map<int64_t, int64_t>& senders(int64_t ranks, int64_t stages) const;

  LayerTables& tables_;
  simulate::OpCosts& costs_;
  // By the sender's layers, both submeshes, the sender's first rank, and sequence.
  mutable std::map<std::tuple<const Layers*, int64_t, int64_t, int64_t, int64_t, int64_t, bool>,
                   MessageSeconds>
      messages_;
  mutable std::map<std::pair<int64_t, int64_t>, std::map<int64_t, int64_t>> senders_;
};

}  // namespace perigee::search
