// The sections that run for each microbatch.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/draft/source.h"
#include "compile/gradients/gathers.h"
#include "compile/gradients/gradients.h"
#include "compile/graph/microbatch.h"
#include "compile/trace.h"

namespace perigee::compile {

// Values that all microbatches share: averages, made before the first microbatch, and sums.
struct Accumulated {
  std::vector<ValueId> averages;           // like Microbatches::averages
  std::map<std::string, ValueId> results;  // losses and results by name
};

// Returns `gradients` with the values of `kept`, the graph of microbatches that keep their results.
Gradients gradients_of(const Source& kept, const Source& source, Gradients gradients);

// Appends the sections "prologue" and "prologue_end" where some averages are not made yet, then
// "micro" or the sections of the stage's parts.
void make_microbatch_sections(Draft& draft, const Source& source, const Microbatches& microbatches,
                              const Gradients& gradients, const std::vector<Gather>& gathers,
                              const std::vector<ValueId>& inputs, Accumulated& accumulated,
                              TraceSource& traces);

}  // namespace perigee::compile
