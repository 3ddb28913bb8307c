#include "train/commands/evaluate_job.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "checkpoint/checkpoint.h"
#include "train/output/run_folder.h"
#include "train/run/loop.h"
#include "train/step/token_input.h"

namespace perigee::train {

std::string evaluate_job(const Task& task, RankSession& session, const std::string& checkpoint) {
  const auto folder = checkpoint::find_checkpoint(checkpoint.empty() ? checkpoint_run(task.job)
                                                                     : checkpoint);
  std::shared_ptr<const ModelSource> source;
  const auto& shared = plan_session(task, session, "", source);
  session.trainer = std::make_unique<RankTrainer>(shared, session.job, session.connection,
                                                  session.traces);
  auto& trainer = *session.trainer;
  const checkpoint::Checkpoint from(folder);
  trainer.load(from);
  auto division = data::division_of(shared.plan);
  division.warn = session.communicator->rank() == 0;
  auto data = data::open_data(session.job, division, id_limit(shared.training));
  if (data.validation.batches == 0) {
    fail("data",
         "evaluation needs a held-out global batch, but data.validation = {} leaves none: raise "
         "it",
         session.job.data.validation);
  }
  const auto loss = validate(trainer, session.job, data.validation);
  const auto batches = std::min(data.validation.batches, session.job.train.validate_batches);
  return nlohmann::json{{"checkpoint", from.folder()},
                        {"step", from.info().step},
                        {"val_loss", loss},
                        {"samples", batches * session.job.batch.global}}
             .dump() +
         "\n";
}

}  // namespace perigee::train
