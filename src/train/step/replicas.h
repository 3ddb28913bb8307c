// Comparison of the tensors that several ranks hold (train.check_replicas).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "exec/comm/communicator.h"
#include "train/step/rank_trainer.h"

namespace perigee::train {

// Returns a sentence that names the first tensor whose hashes differ, the ranks that deviate (all
// holders where no hash has the majority), and the number of further tensors; "" where all are
// equal. `hashes`: by rank, those of the holdings that the rank has, in their order.
std::string find_difference(std::span<const checkpoint::Holding> holdings,
                            const std::vector<std::vector<int64_t>>& hashes);

// Compares parameters, buffers and states after a step: each rank hashes (XXH3-64) the parts that
// other ranks hold too, and all exchange the hashes. All ranks call it. Throws Error (failed) on
// all of them where a byte differs, naming tensor, rank and step. On a GPU without
// cluster.deterministic only ranks over the batch's axes are compared: others repeat a computation
// whose kernels may round differently from run to run. `equal_at`: the last step after which no
// difference was found.
void check_replicas(RankTrainer& trainer, exec::Communicator& communicator, int64_t step,
                    int64_t equal_at);

}  // namespace perigee::train
