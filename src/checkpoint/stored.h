// From a checkpoint into a tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include "checkpoint/checkpoint.h"

namespace perigee::checkpoint {

// Reads the part, which has the target's type and shape, into the target, on any device. A weight
// that is stored in another floating type is converted: models in different precisions can read
// each other's checkpoints. Throws as Checkpoint::read.
void read_stored(const Checkpoint& checkpoint, TensorPart part, at::Tensor target);

// Throws as Checkpoint::require for a part that read_stored could not read.
void require_stored(const Checkpoint& checkpoint, TensorPart part);

}  // namespace perigee::checkpoint
