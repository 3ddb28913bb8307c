// The reasons why the plan that a search has found is the best.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "search/explain/features.h"
#include "search/search.h"

namespace perigee::search {

// Adds the reasons to the plan as decisions and sets Found::bound_by. Requires all other fields of
// `found`. `cluster`: the name of the plan's cluster. `time_limit`: of the pins.
void explain(Found& found, const std::string& cluster, std::optional<double> time_limit);

// Returns a sentence for each tensor size other than the best plan's: its best plan and the excess
// of that plan's step time, by the simulator where it was judged, else by the model: "the best plan
// with tensor = 4 is tensor 4, data 2, ...: it takes 12.0% longer by the model". Without a plan,
// the excess of the lower bound, or that none fits.
std::vector<std::string> tensor_size_sentences(const Found& found);

}  // namespace perigee::search
