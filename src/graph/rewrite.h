// Rewriting a captured graph: where a pattern stands, forward and backward ops alike, a replacement
// that computes the same takes its place.
//
// Pattern and replacement are joint graphs in the text form (graph/graph.h) with the same inputs
// and outputs. What the pattern reads are its inputs: of kind parameter where a gradient goes back,
// else data. An output `result` is what the forward ops make; the gradient that comes in for the
// result `y` is the input `gradient:y`. An output `gradient` is what the backward ops add to the
// gradient of the input of that name; where a graph has no such gradient, its ops need not be
// there.
//
// In both texts float32 stands for any one floating type, and each prime size from 1009 on for any
// size, a product of them for the product of these. 1009 as the first size of a shape stands for
// one dim or more ([1009, 1013]: all dims but the last, and the last); dims in arguments count
// accordingly. A string "?x" as an argument is any number, the same wherever it stands. The
// replacement may say "1/?x", and float64 for the type of statistics: float64 where the floating
// type is, else float32.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace perigee::graph {

struct RewriteRule {
  std::string name;
  Graph pattern, replacement;
};

// Throws Error naming the rule where a text does not parse or verify, they do not have the same
// inputs and outputs, or the first result does not need all forward ops of the pattern.
RewriteRule parse_rewrite(std::string name, std::string_view pattern, std::string_view replacement);

// What became of a rule.
struct Rewritten {
  int64_t count = 0;                 // how often it was applied
  std::vector<std::string> refused;  // where its forward ops stand all the same: scope and reason
};

// Applies the rule wherever it fits. Values keep their numbers: those of the pattern are then
// values that nothing makes, new ones come behind. A pattern stays where something else reads a
// value inside it, an output of the graph among them, or where its backward ops are not those of
// the pattern; ops inside it that read no input (masks) may be shared and stay while they are read.
Graph rewrite(Graph graph, const RewriteRule& rule, Rewritten& done);

}  // namespace perigee::graph
