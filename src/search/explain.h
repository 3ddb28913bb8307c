// Why the plan that a search has found is the best.
#pragma once

#include <optional>
#include <string>

#include "search/features.h"
#include "search/search.h"

namespace perigee::search {

// Adds it to the plan as decisions, and says what binds it; all else of `found` is there.
// `features` have counted what was looked at, `cluster` is the name of the one that the plan is
// for, `time_limit` the one of the pins.
void explain(Found& found, const Features& features, const std::string& cluster,
             std::optional<double> time_limit);

}  // namespace perigee::search
