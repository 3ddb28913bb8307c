#include "train/ranks/replay_steps.h"

#include <cstddef>

#include "base/fail.h"
#include "base/log_once.h"
#include "train/ranks/share.h"

namespace perigee::train {

void replay_steps(exec::Executor& executor, std::string_view steps, const job::Job& job,
                  const Connection& connection) {
  const auto& wanted = job.cluster.graphs;
  if (wanted == "false") return;
  const bool required = wanted == "true";
  if (connection.device->place().is_cpu()) {
    if (!required) return;
    fail("cluster",
         "cluster.graphs = true records steps on GPUs, but the ranks compute on the CPU: set "
         "cluster.graphs = \"auto\"");
  }
  const auto group = everyone(*connection.communicator);
  const auto reasons = gather_texts(executor.unrecordable(), *group);
  for (size_t rank = 0; rank < reasons.size(); ++rank) {
    if (reasons[rank].empty()) continue;
    if (required) {
      fail("cluster",
           "cluster.graphs = true needs {} steps that a GPU can record, but on rank {} {}: set "
           "cluster.graphs = \"auto\"",
           steps, rank, reasons[rank]);
    }
    if (group->rank() == 0) {
      log::once(log::Level::info,
                fmt::format("{} steps are not recorded as CUDA graphs: on rank {} {}", steps, rank,
                            reasons[rank]));
    }
    return;
  }
  // After a refusal on one rank, another one may wait for it within NCCL's part of the capture.
  executor.replay_steps(required || group->size() > 1);
}

}  // namespace perigee::train
