// Where the time of a traced step went, by rank.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

namespace perigee::view {

// Reads Chrome trace events as compile::chrome_trace writes them (a process for each rank, a thread for
// each stream; thread 0 computes) and returns
//   {"seconds": of the step, from the first event of any rank to the last,
//    "ranks": [{"rank", "compute", "exposed", "hidden", "idle"}, ...],
//    "gaps": [{"rank", "begin", "seconds", "kind", "after", "before"}, ...]}
// in seconds. compute: the compute stream is busy; exposed: only others are; hidden: both; idle: none.
// compute + exposed + idle = seconds. A gap is a stretch in which the compute stream is not busy, of
// the kind "exposed" where transfers fill most of it, else "idle"; "after" and "before" are the ops
// around it, "" at the step's ends. The ten longest of all ranks are listed, the longest first. Throws
// Error for another text.
nlohmann::json trace_times(std::string_view trace);

}  // namespace perigee::view
