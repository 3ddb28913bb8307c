// Assign models without a memory limit and of small width: variables are eliminated one after the
// other (bucket elimination, Dechter 1999), which is exact and searches nothing.
#pragma once

#include <optional>
#include <vector>

#include "solve/assign_model.h"

namespace perigee::solve {

// Returns the best solution (option position per variable) of a model whose memory does not count;
// nothing where every choice is forbidden, or where the tables on the way would have more than
// `most_work` entries in all.
std::optional<std::vector<int>> eliminate(const Model& model, double most_work);

}  // namespace perigee::solve
