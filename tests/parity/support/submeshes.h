// Strategies on stages of unequal submeshes.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "tests/parity/support/ranks.h"

namespace perigee::parity {

using Submeshes = std::vector<std::vector<mesh::Axis>>;

// Returns the submeshes as parallel_mode's JSON.
std::string text_of(const Submeshes& submeshes);

// Returns a strategy as data: the submeshes, pipeline_parallel's fields, and methods.
std::string staged(const Submeshes& submeshes, const std::string& pipeline,
                   const std::string& methods, int64_t microbatches);

// Returns random submeshes of `stages` stages and at most `left` ranks; `splits`: over tensor too.
Submeshes random_submeshes(std::mt19937& random, int64_t stages, int64_t left, bool splits);

// Returns whether any of the submeshes has the axis.
bool has_axis(const Submeshes& submeshes, const std::string& axis);

// Returns the outcome of one device with the same number of microbatches.
Outcome train_on_one_device(const Given& given, int64_t microbatches, int64_t rows,
                            const std::string& methods = "");

}  // namespace perigee::parity
