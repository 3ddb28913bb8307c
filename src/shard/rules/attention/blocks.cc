#include "shard/rules/attention/blocks.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"

namespace perigee::shard {
namespace {

using mesh::Range;

// Adds the blocks of piece `q` of the queries with piece `k` of the keys. Keys before the piece's
// queries are visible to all of them, those of the same range causally.
void add_blocks(const Pieces& queries, size_t q, const Pieces& keys, size_t k, bool is_causal,
                std::vector<AttentionBlock>& found) {
  const auto &rows = queries.global[q], &seen = keys.global[k];
  const auto block = [&](int64_t begin, int64_t end, bool causal) {
    if (begin >= end) return;
    const int64_t local = keys.local[k].begin + begin - seen.begin;
    found.push_back({queries.local[q], {local, end - begin}, causal, rows.begin, begin});
  };
  if (!is_causal) return block(seen.begin, seen.end(), false);
  block(seen.begin, std::min(seen.end(), rows.begin), false);
  if (seen.end() <= rows.begin || seen.begin >= rows.end()) return;
  if (seen.begin > rows.begin) {
    fail("shard", "queries from {} on must be cut as keys are, but those begin at {}", rows.begin,
         seen.begin);
  }
  block(rows.begin, std::min(seen.end(), rows.end()), true);
}

void merge_adjacent(std::vector<AttentionBlock>& blocks) {
  std::vector<AttentionBlock> joined;
  for (const auto& block : blocks) {
    if (!joined.empty() && !block.causal && !joined.back().causal) {
      auto& last = joined.back();
      if (last.queries == block.queries && last.keys.end() == block.keys.begin) {
        last.keys.length += block.keys.length;
        continue;
      }
      if (last.keys == block.keys && last.queries.end() == block.queries.begin) {
        last.queries.length += block.queries.length;
        continue;
      }
    }
    joined.push_back(block);
  }
  blocks = std::move(joined);
}

}  // namespace

Pieces::Pieces(std::vector<Range> pieces) : global(std::move(pieces)) {
  int64_t at = 0;
  for (const auto& piece : global) {
    local.push_back({at, piece.length});
    at += piece.length;
  }
}

int64_t Pieces::length() const { return local.back().end(); }

std::vector<AttentionBlock> attention_blocks(const Pieces& queries, const Pieces& keys,
                                             const BlockOptions& options) {
  const auto [causal, by_pieces] = options;
  if (!causal && !by_pieces) return {{{0, queries.length()}, {0, keys.length()}}};
  if (causal && !by_pieces && keys.global == queries.global) {
    return {{{0, queries.length()}, {0, keys.length()}, true}};
  }
  std::vector<AttentionBlock> found;
  for (size_t q = 0; q < queries.global.size(); ++q) {
    for (size_t k = 0; k < keys.global.size(); ++k) add_blocks(queries, q, keys, k, causal, found);
  }
  if (!by_pieces) merge_adjacent(found);
  return found;
}

}  // namespace perigee::shard
