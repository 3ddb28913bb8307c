// Writes a checkpoint of all ranks.
#pragma once

#include <string>

#include "train/step/rank_trainer.h"

namespace perigee::train {

// Writes the ranks' tensors as `run`/checkpoints/step-N, with `state`, a JSON object. All ranks call
// it; it returns when the checkpoint is complete. Throws Error (failed) on every rank when one of
// them cannot write or has weights that are not finite (finite_weights.h); earlier checkpoints then
// stay as they are.
void save_checkpoint(RankTrainer& trainer, exec::Communicator& communicator, const job::Job& job,
                     const plan::Plan& plan, const std::string& run, int64_t step,
                     const std::string& state = "{}");

}  // namespace perigee::train
