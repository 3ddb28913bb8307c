#include "train/commands/evaluate_job.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/fail.h"
#include "base/log_format.h"
#include "base/terminal/phases.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weights/merge.h"
#include "text/documents/end_of_text.h"
#include "text/tokenizer.h"
#include "train/output/file_slices.h"
#include "train/output/run_folder.h"
#include "train/run/held_out.h"
#include "train/run/loop.h"
#include "train/step/step_data.h"
#include "train/step/token_input.h"

namespace perigee::train {
namespace {

// The held-out tokens that are learned, and the text that they are.
struct HeldOut {
  int64_t tokens = 0;
  int64_t bytes = 0;  // 0: not known
};

// Counts them in the first batches. Special tokens are no text.
HeldOut count_held_out(const job::Job& job, data::Validation& validation, int64_t batches) {
  const auto sources = job.data.token_sources();
  const bool texts = std::ranges::all_of(sources, [](const auto& s) { return s.tokens.empty(); });
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::set<int64_t> special;
  if (texts && job.data.objective == "causal") {
    tokenizer = text::make_tokenizer(job.data.tokenizer);
    for (const auto id : tokenizer->special_ids()) special.insert(id);
    const bool ends = job.data.pack != "stream" || !job.data.end_of_text.empty() ||
                      std::ranges::any_of(sources, [](const auto& s) { return s.text.empty(); });
    if (ends) {
      special.insert(text::end_of_text(*tokenizer, job.data.tokenizer, job.data.end_of_text));
    }
  }
  HeldOut counted;
  for (int64_t i = 1; i <= batches; ++i) {
    const auto labels = validation.data->at(i, {0, job.batch.global}).at("labels");
    std::vector<int64_t> ids;
    for (int64_t k = 0; k < labels.numel(); ++k) {
      const auto id = labels.const_data_ptr<int64_t>()[k];
      if (id < 0) continue;
      ++counted.tokens;
      if (!special.contains(id)) ids.push_back(id);
    }
    if (tokenizer) counted.bytes += std::ssize(tokenizer->decode(ids));
  }
  return counted;
}

}  // namespace

std::string evaluate_job(const Task& task, RankSession& session, const std::string& checkpoint) {
  const auto folder = checkpoint::find_checkpoint(checkpoint.empty() ? checkpoint_run(task.job)
                                                                     : checkpoint);
  log::Phases phases(session.communicator->rank() == 0 && session.job.train.progress);
  phases.begin("planning");
  std::shared_ptr<const ModelSource> source;
  const auto& shared = plan_session(task, session, "", source);
  require_document_inputs(session.job, shared.training);
  session.trainer = std::make_unique<RankTrainer>(shared, session.job, session.connection,
                                                  session.traces);
  auto& trainer = *session.trainer;
  const checkpoint::Checkpoint from(folder);
  checkpoint::require_scale_of_run(shared.plan.adapters, from);
  phases.begin(fmt::format("loading {}", folder));
  const auto show = [&](int64_t done, int64_t all) { phases.done(done, all); };
  trainer.load(from, show);
  phases.begin("reading the held-out samples");
  auto division = with_slices_of(from.info().state, data::division_of(shared.plan));
  division.warn = session.communicator->rank() == 0;
  auto data = data::open_data(session.job, division, id_limit(shared.training));
  check_data(session.job, shared.training, *data.training, division.warn);
  if (data.validation.batches == 0) {
    fail("data",
         "evaluation needs a held-out global batch, but data.validation = {} leaves none: raise "
         "it",
         session.job.data.validation);
  }
  count_learned(session.job, shared.training, data.validation);
  phases.begin("evaluating");
  const auto loss = validate(trainer, session.job, data.validation, show);
  const auto batches = std::min(data.validation.batches, session.job.train.validate_batches);
  nlohmann::json report{{"checkpoint", from.folder()},
                        {"step", from.info().step},
                        {"val_loss", loss},
                        {"samples", batches * session.job.batch.global}};
  const auto& job = session.job;
  const bool tokens = !job.data.token_sources().empty() && job.data.objective != "classification";
  if (tokens && session.communicator->rank() == 0) {
    report["perplexity"] = std::exp(loss);
    const auto counted = count_held_out(job, data.validation, batches);
    report["tokens"] = counted.tokens;
    if (counted.bytes > 0) {
      report["bits_per_byte"] = loss * double(counted.tokens) / double(counted.bytes) / M_LN2;
    }
  }
  return report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace perigee::train
