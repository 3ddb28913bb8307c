// Names in a method's config, looked up in the graph.
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

// A row: modules whose paths differ in one number, as a pattern ("blocks.*").

// Returns the longest row, "" where there is none.
std::string longest_row(const graph::Graph& graph);

// Returns all rows of two or more modules of one type that are not within another such row, in the
// graph's order; the longest row where there are none.
std::vector<std::string> repeated_rows(const graph::Graph& graph);

// Returns the modules with ops of their own that contain no other such module, in forward order.
std::vector<std::string> innermost_modules(const graph::Graph& graph);

// Returns the ops of the forward pass that a field names, by full or bare name ("mm", "add" for
// aten::add.Tensor too). Throws Error for a name of no op.
std::vector<std::string> named_ops(const graph::Graph& graph, const std::vector<std::string>& given,
                                   std::string_view field, std::string_view method);

// As above, for the graph that is compiled: after the plan's rewrites.
std::vector<std::string> named_ops(const plan::Plan& plan, const graph::Graph& graph,
                                   const std::vector<std::string>& given, std::string_view field,
                                   std::string_view method);

// Returns "a, b, c".
std::string join(const std::vector<std::string>& list);

}  // namespace perigee::methods
