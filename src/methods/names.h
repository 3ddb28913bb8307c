// Names that a method's config gives, against those that the graph has.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "methods/method.h"

namespace perigee::methods {

// Returns the outermost scopes that a pattern matches, by path or by the module's type, in the
// graph's order. Throws Error for a pattern that matches none.
std::vector<std::string> matching_scopes(const graph::Graph& graph,
                                         const std::vector<std::string>& patterns,
                                         std::string_view method);

// Returns the longest row of modules that differ in a number alone, as a pattern ("blocks.*"); ""
// where there is none.
std::string longest_row(const graph::Graph& graph);

// Returns all rows of two or more modules of one type that differ in a number alone and lie in no
// other such row, as patterns in the graph's order; the longest row where there are none.
std::vector<std::string> repeated_rows(const graph::Graph& graph);

// Returns the modules with ops of their own that hold no other such module, in the order in which
// the forward pass comes to them.
std::vector<std::string> innermost_modules(const graph::Graph& graph);

// Returns the ops of the forward pass that a field of the config names, by full or bare name
// ("mm", "add" for aten::add.Tensor too); none where the field is left out. Throws Error for a name
// that is none's.
std::vector<std::string> named_ops(const graph::Graph& graph, const Config& config,
                                   const char* field, std::string_view method);

// Returns "a, b, c".
std::string join(const std::vector<std::string>& list);

}  // namespace perigee::methods
