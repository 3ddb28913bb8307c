// Values that the members of a lane exchange through the job's store.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/nccl/lane.h"

namespace perigee::cuda {

// Returns the key's value once it is set. Throws std::exception where it is not set within the
// lane's time-out, and that of LaneOptions::check, which it calls meanwhile.
std::vector<uint8_t> wait_for(const LaneOptions& options, const std::string& key);

// Returns whether all members call it with the same text; each of them calls it. `round` counts the
// lane's calls. Throws as wait_for where a member does not.
bool all_equal(const LaneOptions& options, int64_t round, const std::string& text);

}  // namespace perigee::cuda
