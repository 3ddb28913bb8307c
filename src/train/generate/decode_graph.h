// The forward graph of a language model, changed to read and extend a cache of keys and values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "graph/graph.h"

namespace perigee::train {

// The caches' size.
struct CacheShape {
  int64_t slots = 1;    // texts
  int64_t context = 0;  // tokens of each
  // How many tokens, the last one included, are seen by the attention of a scope; all others see
  // every token.
  std::map<std::string, int64_t> windows = {};
};

// Returns whether a buffer is a cache that with_caches adds.
bool is_cache(std::string_view buffer);

// Returns "", or why the graph's model cannot use a cache: the predicate of a sentence about it
// ("has no attention").
std::string obstacle_to_caches(const graph::Graph& graph);

// `graph`: an evaluation of some tokens of some texts, with the inputs "tokens" and "positions" [b, s]
// and the result "logits" [b, s, v]. Returns the graph of logits in which each token sees itself and
// the tokens before it in its slot: attention is perigee::cached_attention. Further inputs are
// "slots" [b], the slot of each row, and "places" [b, s], the place of each token in its slot's text,
// -1: no token. Two buffers for each attention, "cache.SCOPE.N.key" and ".value", hold [slots,
// heads, context + 1, size]. Throws Error where obstacle_to_caches returns a reason, or no
// attention has the scope of a window.
graph::Graph with_caches(graph::Graph graph, const CacheShape& shape);

}  // namespace perigee::train
