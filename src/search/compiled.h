// Compiles a candidate of the search.
#pragma once

#include "compile/compile.h"
#include "search/search.h"

namespace perigee::search {

struct Compiled {
  plan::Plan plan;  // with its prediction of memory
  compile::Programs programs;
};

// Returns the request's graph for the choice's microbatches; valid until the next call.
const graph::Graph& graph_of(const Choice& choice, const Request& request);

// Returns the plan of the candidate's strategy for that graph, and its programs; fills its
// peak_bytes. Throws Error where it cannot be compiled.
Compiled compile_candidate(Candidate& candidate, const Request& request, const graph::Graph& graph,
                           compile::TraceSource& traces);

}  // namespace perigee::search
