// The submeshes that stages of a pipeline may have, and their logical views (Alpa, Zheng et
// al. 2022).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace perigee::search {

// The devices of a stage: hosts x devices of each, and their axes.
struct SubmeshView {
  int64_t hosts = 1, devices = 1;
  int64_t data = 1, tensor = 1;
  int64_t ranks() const { return hosts * devices; }
  bool operator==(const SubmeshView&) const = default;
};

struct SubmeshSpace {
  int64_t hosts = 1, devices = 1;  // of the cluster: hosts, and devices of each
  // Numbers of whole hosts: all, power_of_two, small_power_of_two (at most 4), or manual.
  std::string physical = "power_of_two";
  std::vector<std::pair<int64_t, int64_t>> manual;  // hosts, devices of each
  // same_as_physical (tensor within a host), data_parallel_only, model_parallel_only,
  // single_node_model_parallel (powers of two within a host), all.
  std::string logical = "single_node_model_parallel";
  int64_t samples = 1;  // of a microbatch, over which the data axis must divide
};

// Returns the views of all submeshes: parts of a host of 1, 2, 4, ... devices, a whole host, and
// several whole hosts; or the submeshes of `manual`. Throws Error for an unknown space, and for
// submeshes that the cluster lacks.
std::vector<SubmeshView> submesh_choices(const SubmeshSpace& space);

}  // namespace perigee::search
