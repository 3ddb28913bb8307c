// The blocks of attention over a part of a sequence: pieces of the queries with pieces of the keys
// that they see under a causal mask.
#pragma once

#include <cstdint>
#include <vector>

#include "mesh/placement.h"

namespace perigee::shard {

// Pieces of a sequence, and their positions in a tensor that concatenates them.
struct Pieces {
  std::vector<mesh::Range> global, local;

  explicit Pieces(std::vector<mesh::Range> pieces);
  int64_t length() const;
};

// Queries and the keys that they attend to, as ranges of the local tensors.
struct AttentionBlock {
  mesh::Range queries, keys;
  bool causal = false;                     // key j <= query i, counted within the block
  int64_t first_query = 0, first_key = 0;  // in the whole sequences
};

struct BlockOptions {
  bool causal = false;     // of the whole sequences
  bool by_pieces = false;  // each block is one piece of queries and keys
};

// Returns the blocks in which the queries see all their keys among `keys`. Throws Error for causal
// queries that are cut otherwise than the keys of their range.
std::vector<AttentionBlock> attention_blocks(const Pieces& queries, const Pieces& keys,
                                             const BlockOptions& options);

}  // namespace perigee::shard
