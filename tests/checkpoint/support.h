// Checkpoints whose elements encode their tensor, step and index.
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

// Tensors on a mesh, each shape and sharding of which is different.
inline constexpr auto kMesh = "data=2,tensor=2";
inline const std::vector<Sharded> kTensors = {{"embed.weight", {7, 4}, "S0,R"},
                                              {"fc.weight", {6, 5}, "S1,S0"},
                                              {"fc.bias", {5}, "R,R"},
                                              {"scale", {}, "R,R"},
                                              {"conv.weight", {4, 3, 2, 2}, "R,S0"},
                                              {"exp_avg:fc.weight", {6, 5}, "S0,S0"}};

// Returns the whole tensor as a part.
checkpoint::TensorPart whole_of(const Sharded& tensor);

// Returns the part's float64 values at a step.
std::vector<double> values_of(const checkpoint::TensorPart& part, int64_t step);

// Writes a checkpoint as all ranks of the mesh, one after the other.
void write_checkpoint(const std::string& run, int64_t step, const std::string& mesh,
                      const std::vector<Sharded>& tensors, int64_t keep = 3);

// Reads a part; returns whether every element has its value of the checkpoint's step.
bool is_right(const checkpoint::Checkpoint& checkpoint, const checkpoint::TensorPart& part);

}  // namespace perigee::test
