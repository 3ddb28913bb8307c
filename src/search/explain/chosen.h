// The reasons for a plan that a strategy chose from the results of searches.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "methods/method.h"
#include "search/search.h"

namespace perigee::search {

// The searches that a strategy asked for, and the methods that they may name.
struct SearchesMade {
  std::span<const std::shared_ptr<const Found>> list;
  std::span<const std::shared_ptr<const methods::Method>> defined;
};

// Returns the search and the candidate whose methods the strategy has, with Found::best and
// Found::chosen (unless it is what the search found) set; the bound is that of all searches, and
// the combinations are theirs. Nothing where the strategy has no candidate's mesh.
std::shared_ptr<Found> chosen_by(const methods::StrategySpec& strategy, const SearchesMade& made);

}  // namespace perigee::search
