// A candidate of the search as programs.
#pragma once

#include "compile/compile.h"
#include "search/search.h"

namespace perigee::search {

struct Compiled {
  plan::Plan plan;  // with its prediction of memory
  compile::Programs programs;
};

// Returns the plan of the candidate's strategy, and its programs; fills its peak_bytes. Throws
// Error where it cannot be compiled.
Compiled compile_candidate(Candidate& candidate, const Request& request,
                           compile::TraceSource& traces);

}  // namespace perigee::search
