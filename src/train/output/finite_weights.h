// A checkpoint never holds weights that are not finite.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "exec/comm/communicator.h"
#include "train/step/rank_trainer.h"

namespace perigee::train {

// Returns the key of the first piece with a number that is NaN or infinite, of those whose name
// `wanted` accepts; "" where all are finite.
std::string find_not_finite(const Snapshot& snapshot,
                            const std::function<bool(const std::string&)>& wanted);

// Returns whether the trained parameters and their states in the ranks' pieces of a checkpoint
// (averages over copies of the model included) are finite. All ranks call it with
// RankTrainer::pieces_to_write(step). Where they are not: throws Error (failed) on all ranks,
// naming tensor and rank; without train.stop_if_not_finite a warning says so.
bool are_weights_finite(const RankTrainer& trainer, const Snapshot& snapshot,
                        exec::Communicator& communicator, const job::Job& job, int64_t step);

}  // namespace perigee::train
