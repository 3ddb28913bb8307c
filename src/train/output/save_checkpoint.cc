#include "train/output/save_checkpoint.h"

#include "checkpoint/checkpoint.h"
#include "train/output/finite_weights.h"
#include "train/ranks/share.h"
#include "train/ranks/wait_for_work.h"

namespace perigee::train {

void save_checkpoint(RankTrainer& trainer, exec::Communicator& communicator, const job::Job& job,
                     const plan::Plan& plan, const std::string& run, int64_t step,
                     const std::string& state) {
  const bool root = communicator.rank() == 0;
  trainer.average_copies(step);
  const auto pieces = trainer.pieces_to_write(step);
  if (!are_weights_finite(trainer, pieces, communicator, job, step)) return;
  checkpoint::CheckpointWriter writer(run, step);
  try {
    if (root) writer.begin();
    barrier(communicator);
    const auto all = everyone(communicator);
    wait_for_work(*all, job, [&] { writer.find(communicator.rank()); });
    wait_for_work(*all, job, [&] { writer.write_rank(communicator.rank(), pieces); });
    const auto finish = [&] {
      checkpoint::CheckpointInfo info;
      info.step = step;
      info.samples = step * job.batch.global;
      info.state = state;
      info.plan_hash = plan::hash(plan);
      writer.finish(info, communicator.world(), job.train.keep_checkpoints);
    };
    wait_for_work(*all, job, root ? std::function<void()>(finish) : nullptr);
  } catch (...) {
    writer.abandon(communicator.rank());
    throw;
  }
}

}  // namespace perigee::train
