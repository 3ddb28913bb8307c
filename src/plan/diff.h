// Differences between two plans.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace perigee::plan {

// One difference, by its path in the plan file. Paths that differ only in block numbers and have
// the same values are merged: "placements.blocks.*.attn.qkv.weight".
struct Difference {
  std::string path;
  std::string from, to;    // values in the two plans as JSON text; "": the plan has no such path
  std::int64_t count = 1;  // number of paths merged into this one
  bool operator==(const Difference&) const = default;
};

// Returns the differences in order of importance: predicted step time and memory, mesh, pipeline
// and microbatches, placements, ..., decisions; within each, sorted by path. Axes and units are
// matched by name, lists of scopes by member; of the ranks' peak memory the largest is compared.
// "mesh.axes" is the order of the axes where both plans have the same ones. Plans that differ only
// in the order or number of members of other lists have these lists as differences; the result is
// empty only for equal plans.
std::vector<Difference> difference(const Plan& a, const Plan& b);

// Returns the differences as human-readable lines that name the plans `a` and `b`; one line if the
// plans are equal.
std::string to_text(const std::vector<Difference>& list, const std::string& a,
                    const std::string& b);

// Returns the differences as JSON ("perigee.difference/1"), ending in a newline.
std::string to_json(const std::vector<Difference>& list);

}  // namespace perigee::plan
