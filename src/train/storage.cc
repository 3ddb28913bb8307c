#include "train/storage.h"

#include "train/checkpoint.h"
#include "train/together.h"

namespace perigee::train {

void barrier(exec::Communicator& communicator) {
  everyone(communicator)->run({.kind = exec::Collective::Kind::barrier});
}

void save_checkpoint(RankTrainer& trainer, exec::Communicator& communicator, const job::Job& job,
                     const plan::Plan& plan, const std::string& run, int64_t step) {
  const bool root = communicator.rank() == 0;
  CheckpointWriter writer(run, step);
  try {
    if (root) writer.begin();
    barrier(communicator);
    const auto all = everyone(communicator);
    run_together(*all, job, [&] { writer.find(communicator.rank()); });
    trainer.average_copies(step);
    run_together(*all, job,
                 [&] { writer.write_rank(communicator.rank(), trainer.pieces_to_write(step)); });
    const auto finish = [&] {
      CheckpointInfo info;
      info.step = step;
      info.samples = step * job.batch.global;
      info.plan_hash = plan::hash(plan);
      writer.finish(info, communicator.world(), job.train.keep_checkpoints);
    };
    run_together(*all, job, root ? std::function<void()>(finish) : nullptr);
  } catch (...) {
    writer.abandon(communicator.rank());
    throw;
  }
}

}  // namespace perigee::train
