#include "train/run/held_out.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/fail.h"
#include "shard/loss/classify_loss.h"

namespace perigee::train {

void count_learned(const job::Job& job, const graph::Graph& graph, data::Validation& validation) {
  validation.learned.clear();
  const bool tokens = !job.data.token_sources().empty() && job.data.objective != "classification";
  if (!tokens || shard::classify_loss(graph).kind == shard::LossKind::sum) return;
  const auto batches = std::min(validation.batches, job.train.validate_batches);
  for (int64_t i = 1; i <= batches; ++i) {
    const auto labels = validation.data->at(i, {0, job.batch.global}).at("labels");
    validation.learned.push_back(labels.ge(0).sum().item<int64_t>());
  }
  const bool none = std::ranges::all_of(validation.learned,
                                        [](int64_t count) { return count == 0; });
  if (batches > 0 && none) {
    fail("data",
         "validation needs a label that is learned, but the {} held-out batches of {} samples have "
         "none: raise data.validation or train.validate_batches",
         batches, job.batch.global);
  }
}

}  // namespace perigee::train
