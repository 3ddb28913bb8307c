// Repeated blocks: a graph is folded to two of them, which stand for all.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace perigee::search {

inline constexpr double kLeastShare = 0.1;

// Returns the rows of modules whose names differ in a number only, one after another in forward
// order ("encoder.blocks.0", ..., "decoder.blocks.0", ...). Rows within a module of another row,
// such as a block's own Sequential, do not count, and neither do rows of less than kLeastShare of
// the arithmetic of the largest one. Empty where the graph has none with ops.
std::vector<std::string> row_of_blocks(const graph::Graph& graph);

// A graph with the first and the last of its blocks, which stand for all.
struct Folded {
  graph::Graph graph;
  std::vector<std::string> blocks;  // of the whole graph
  std::vector<std::string> kept;    // two of them, or all where they differ or are no chain
  std::string epilogue;             // the first module after the blocks; "": none
  // Where blocks differ, or are no chain: the arithmetic of the forward pass from each block to the
  // next one, the prologue with the first and the epilogue with the last; else empty.
  std::vector<double> weights;
};

// Arithmetic of the forward pass, in floating-point operations.
struct Arithmetic {
  double prologue = 0, epilogue = 0;  // 0 where blocks differ
  std::vector<double>
      blocks;  // where they differ the first has the prologue, the last the epilogue
};

// Returns the arithmetic of the whole graph's parts.
Arithmetic arithmetic_of(const Folded& folded);

// Removes all blocks but the first and the last: where one of them reads a value of a removed
// neighbour, it reads that of the other instead. Blocks are identical where their ops, arguments
// (keys of random numbers excepted) and shapes are, and a chain where each depends on the one
// before it (those of two parallel towers are not); otherwise, or with fewer than three blocks, the
// graph is returned unchanged.
Folded fold(const graph::Graph& graph);

// Returns the positions in the row of blocks at which parts begin: 0 is the first block (the
// prologue is then a part without a block), the number of blocks is the epilogue. Throws Error for
// other names, and for another order.
std::vector<int> places_of(const Folded& folded, const std::vector<std::string>& starts);

// Returns the name at such a position.
const std::string& start_at(const Folded& folded, int place);

}  // namespace perigee::search
