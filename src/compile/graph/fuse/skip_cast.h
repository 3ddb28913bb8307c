// Values read in the low precision that a cast widens.
#pragma once

#include <optional>
#include <vector>

#include "graph/graph.h"

namespace perigee::compile {

// Returns what a reader of `v` reads to have the numbers of `v` without a cast to float32 of bfloat16
// or float16: the cast's operand, or `v` itself, whose views of the cast then have that operand's
// type. Undefined where there is no such cast (`from`, if given: of this type), or where it or a view has
// another reader (`readers`: count_readers). The cast stays, without readers.
graph::ValueId skip_cast(graph::Graph& graph, const std::vector<int>& readers, graph::ValueId v,
                         std::optional<graph::DType> from = {});

}  // namespace perigee::compile
