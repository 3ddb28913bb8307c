// What two plans do differently.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace perigee::plan {

// One thing that differs, by its path in the file. Paths that differ in the numbers of blocks
// alone, and in the same values, are one: "placements.blocks.*.attn.qkv.weight".
struct Difference {
  std::string path;
  std::string from, to;    // as JSON text; "": that plan has no such thing
  std::int64_t count = 1;  // how many paths it stands for
  bool operator==(const Difference&) const = default;
};

// Returns what differs, what weighs most first: what is predicted of step and memory, then the
// mesh, the pipeline and its microbatches, and placements; sentences on decisions come last. Of
// each of these by path. Axes and units go by their names, lists of scopes by their members, and of
// peak memory the largest counts.
std::vector<Difference> difference(const Plan& a, const Plan& b);

// Returns the differences as lines for people, which name the plans; one line where there is none.
std::string to_text(const std::vector<Difference>& list, const std::string& a,
                    const std::string& b);

// Returns them as JSON ("perigee.difference/1"), ending in a newline.
std::string to_json(const std::vector<Difference>& list);

}  // namespace perigee::plan
