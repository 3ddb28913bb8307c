// The submeshes of heterogeneous pipeline stages.
//
// Rows of unequal submeshes are searched where the pins give one or name the sizes of stages, and
// without that on up to kFewRanks ranks and on clusters of several kinds of devices. On up to
// kAllRows ranks these are all rows; on more the rows of two runs, each of identical stages, which
// suffices where ranks are left over or where the cluster has a fast and a slow group. A stage's
// tensor ranks lie within a node.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "search/space/choice.h"

namespace perigee::search {

inline constexpr int64_t kFewRanks = 8, kAllRows = 6;

// Returns the values of Pins::sizes other than "none": "all", "power_of_two", "small_power_of_two"
// (1, 2 or 4 ranks): Alpa's spaces of submeshes.
std::vector<std::string> stage_sizes();

// Returns whether the space has stages of so many ranks; "none" has all.
bool has_size(const std::string& sizes, int64_t ranks);

bool are_identical(const std::vector<Submesh>& submeshes);

// Reads a list of submeshes as parallel_mode takes them, of the axes tensor and data. Throws Error.
std::vector<Submesh> parse_submeshes(const nlohmann::json& list);

// Returns "2 x data 2 | tensor 2 data 2 | 1 rank": a run of identical submeshes is printed once.
std::string to_string(const std::vector<Submesh>& submeshes);

struct RowOptions {
  int64_t ranks = 1;        // of all stages together
  int64_t most_stages = 1;  // blocks
  int64_t node = 1;         // ranks of one
  int64_t batch = 1;        // samples of a step
  std::string sizes = "all";
  std::optional<int64_t> pipe, tensor, data;  // as pinned: of every stage
};

// Returns the rows of at least two submeshes that are not all identical, in a fixed order.
std::vector<std::vector<Submesh>> rows_of_submeshes(const RowOptions& options);

// Returns whether the tensor ranks of each stage lie within a node, and the samples of a step can
// be split over the data ranks of all.
bool is_row(const std::vector<Submesh>& submeshes, const RowOptions& options);

}  // namespace perigee::search
