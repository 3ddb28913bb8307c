// Checkpoints whose every element says which tensor, step and place it belongs to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace perigee::test {

struct Sharded {
  std::string name;
  std::vector<int64_t> shape;
  std::string placements;  // "S0,R"
};

// The whole tensor as a part.
checkpoint::TensorPart whole_of(const Sharded& tensor);

// Returns the part's values at a step (float64).
std::vector<double> values_of(const checkpoint::TensorPart& part, int64_t step);

// Writes a checkpoint as all ranks of the mesh would, one after the other.
void write_checkpoint(const std::string& run, int64_t step, const std::string& mesh,
                      const std::vector<Sharded>& tensors, int64_t keep = 3);

// Reads a part; returns whether every element is what it must be at the checkpoint's step.
bool is_right(const checkpoint::Checkpoint& checkpoint, const checkpoint::TensorPart& part);

}  // namespace perigee::test
