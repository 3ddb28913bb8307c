// Numbers of an export that were its number of samples in Python: len(x), x.shape[0].
#pragma once

#include <cstdint>
#include <string>

#include "graph/graph.h"

namespace perigee::exported {

// Returns the first op with such a number, as "OP in scope ..., which ...", or "". `graph` and
// `twice` are captures of one export with a number of samples and with twice as many, and have the
// same nodes; `samples` is the number of the export. A whole number N is taken for the number of
// samples where it is that, or the number of elements in the first dims of a tensor of the batch, and
//   multiplies a sum or mean over samples;
//   divides a sum over samples;
//   is added to a value that depends on no samples and on which the loss does not depend
//   (seen += len(x)), for more than one sample.
// Other numbers of the model are seldom of this form; a number that was computed from the number
// of samples in another way is not found.
std::string find_baked_count(const graph::Graph& graph, const graph::Graph& twice, int64_t samples);

}  // namespace perigee::exported
