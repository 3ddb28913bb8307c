#include "train/run/bad_steps.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "train/run/exit_status.h"

namespace perigee::train {
namespace {

constexpr int64_t kNamed =
    10;  // bad steps in a row that the log names, where any number may follow

std::string text_of(double value) {
  return std::isnan(value)   ? "not a number"
         : std::isinf(value) ? "infinite"
                             : fmt::format("{}", value);
}

}  // namespace

std::string name_samples(Range samples, const std::vector<int64_t>& indices, size_t shown) {
  auto text = fmt::format("samples {} to {}", samples.begin, samples.begin + samples.length - 1);
  if (indices.empty()) return text;
  text += ", indices ";
  size_t ranges = 0;
  for (size_t i = 0; i < indices.size(); ++ranges) {
    size_t end = i + 1;
    while (end < indices.size() && indices[end] == indices[end - 1] + 1) ++end;
    if (ranges == shown) return text + fmt::format(" and {} more", indices.size() - i);
    if (ranges > 0) text += ", ";
    text += end - i < 3 ? fmt::format("{}", indices[i])
                        : fmt::format("{}-{}", indices[i], indices[end - 1]);
    i = end - i < 3 ? i + 1 : end;
  }
  return text;
}

BadSteps::BadSteps(const job::Job& job, bool scales_loss, const std::string& state,
                   int64_t more_samples)
    : job_(job),
      scales_loss_(scales_loss),
      more_samples_(more_samples),
      left_out_(job::parse_steps(job.train.skip_steps)),
      spikes_(job.train) {
  const auto json = nlohmann::json::parse(state, nullptr, false);
  if (json.is_object() && json.contains("spikes")) spikes_.read(json["spikes"].dump());
}

std::string BadSteps::state() const {
  if (job_.train.spike_loss == 0 && job_.train.spike_norm == 0) return "{}";
  return fmt::format("{{\"spikes\":{}}}", spikes_.text());
}

Judgement BadSteps::judge(const StepResult& result) const {
  Judgement judgement;
  const bool finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  if (scales_loss_ && !finite) return judgement;
  if (!std::isfinite(result.loss)) {
    judgement.reason = "its loss is " + text_of(result.loss);
  } else if (!finite) {
    judgement.reason = "the norm of its gradients is " + text_of(result.grad_norm);
  } else {
    judgement.reason = spikes_.reason(result.loss, result.grad_norm);
    judgement.spike = !judgement.reason.empty();
  }
  return judgement;
}

StepResult BadSteps::run(int64_t step, DataSource& data, const Run& run,
                         const std::function<void()>& forget) {
  const auto& train = job_.train;
  const bool left_out = job::contains(left_out_, step);
  const bool changes_nothing = train.on_spike != "warn";  // a spike
  auto result = run(changes_nothing || train.rerun ? spikes_.limits() : StepLimits());
  judgement_ = left_out ? Judgement() : judge(result);
  bool reran = false;
  if (train.rerun && result.skipped && !judgement_.reason.empty()) {
    const auto first = judgement_;
    forget();
    result = run(changes_nothing ? spikes_.limits() : StepLimits());
    judgement_ = judge(result);
    reran = true;
    if (judgement_.reason.empty()) {
      judgement_ = first;
      judgement_.transient = true;
    }
  }
  decide(step, result, data, reran);
  const bool counts = judgement_.reason.empty() || judgement_.transient || !result.skipped;
  if (counts && !result.skipped) spikes_.add(result.loss, result.grad_norm);
  return result;
}

void BadSteps::decide(int64_t step, const StepResult& result, DataSource& data, bool reran) {
  counts_.skipped += result.skipped;
  if (judgement_.reason.empty()) {
    if (!result.skipped) in_a_row_ = 0;
    return;
  }
  const auto samples = job_.batch.global;
  const auto named = name_samples({(step - 1) * samples + more_samples_, samples},
                                  data.indices(step, {0, samples}));
  const auto what = fmt::format("step {} is {}: {} ({})", step,
                                judgement_.spike ? "a spike" : "bad", judgement_.reason, named);
  ++counts_.bad;
  counts_.spikes += judgement_.spike;
  if (judgement_.transient) {
    ++counts_.transient;
    in_a_row_ = 0;
    judgement_.ends.emplace(
        kTransientFault, "train",
        fmt::format("a step must be the same when it is run a second time, but {}, and its second "
                    "run is not: a transient fault of a device, its memory or the network; resume "
                    "the job (--resume), on other hardware if this is seen again",
                    what));
    return;
  }
  const std::string twice = reran ? ", also when run a second time" : "";
  if (judgement_.spike && job_.train.on_spike == "stop") {
    judgement_.ends.emplace(
        reran ? kPersistentFault : Status::failed, "train",
        fmt::format("train.on_spike = \"stop\" ends the job: {}{}", what, twice));
  } else if (judgement_.spike && job_.train.on_spike == "warn") {
    judgement_.warning = what + twice;
  } else {
    keep_going(step, what + twice, result.skipped, reran);
  }
}

void BadSteps::keep_going(int64_t step, const std::string& what, bool skipped, bool reran) {
  const auto& train = job_.train;
  ++in_a_row_;
  if (!train.stop_if_not_finite || (skipped && in_a_row_ <= train.skip_bad_steps)) {
    if (in_a_row_ <= kNamed) judgement_.warning = skipped ? what + "; it is skipped" : what;
    return;
  }
  const auto status = reran ? kPersistentFault : Status::failed;
  if (train.skip_bad_steps > 0) {
    judgement_.ends.emplace(
        status, "train",
        fmt::format("train.skip_bad_steps = {} bad steps in a row are skipped, but {}: lower "
                    "optimizer.lr (a resumed run may), or look at the data",
                    train.skip_bad_steps, what));
    return;
  }
  judgement_.ends.emplace(
      status, "train",
      fmt::format("the loss must be finite, and so must the gradients, but {}: lower optimizer.lr "
                  "(a resumed run may), or look at the data; train.skip_bad_steps = 1 or "
                  "train.skip_steps = \"{}\" goes on without the step",
                  what, step));
}

}  // namespace perigee::train
