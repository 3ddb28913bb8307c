// Repeated blocks: what is known of one is known of all.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace perigee::search {

// The longest row of modules that differ in a number alone, in forward order ("blocks.0",
// "blocks.1", ...). Empty where the graph has none with ops.
std::vector<std::string> row_of_blocks(const graph::Graph& graph);

// A graph with the first and the last of its blocks, which stand for all.
struct Folded {
  graph::Graph graph;
  std::vector<std::string> blocks;  // of the whole graph
  std::vector<std::string> kept;    // two of them, or all where they differ in ops or shapes
  std::string behind;  // the module that the forward pass comes to behind them; "": none
};

// Leaves all blocks out but the first and the last: what these read of a neighbour that went, they
// read of each other, forwards and backwards. Blocks are alike where their ops, their arguments
// (but for keys of random numbers) and their shapes are, one by one; where they are not, or there
// are fewer than three, the graph stays as it is.
Folded fold(const graph::Graph& graph);

// Returns the places in the row of the blocks at which parts are to begin: 0 is the first block,
// which what stands before it is then without, and the number of blocks the module behind them.
// Throws Error for other names, and where they are not in their order.
std::vector<int> places_of(const Folded& folded, const std::vector<std::string>& starts);

// Returns the name at such a place.
const std::string& start_at(const Folded& folded, int place);

}  // namespace perigee::search
