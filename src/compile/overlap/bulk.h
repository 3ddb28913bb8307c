// Collectives of tensor parallelism that matrix products do not hide (plan::Overlap::bulk).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "compile/draft/draft.h"

namespace perigee::compile {

// The bytes that each collective reads, by event.
using WholeCollectives = std::map<int32_t, std::pair<int64_t, int64_t>>;

// Returns the collectives over `tensor` of the backward pass that are not in Overlap::bulk.
WholeCollectives find_waited(const Draft& draft, const std::vector<std::string>& bulk);

// Inserts waits for these collectives where they start, except for those that have been sliced.
void wait_at_once(Draft& draft, const WholeCollectives& waited);

}  // namespace perigee::compile
