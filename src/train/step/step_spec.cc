#include "train/step/step_spec.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/fail.h"
#include "base/text/match.h"
#include "job/optimizer_options.h"
#include "methods/method.h"
#include "train/step/weight_decay.h"

namespace perigee::train {
namespace {

std::vector<std::string> parameter_names(const graph::Graph& graph) {
  std::vector<std::string> names;
  for (const auto& input : graph.inputs) {
    if (input.kind == graph::Input::Kind::parameter) names.push_back(input.name);
  }
  return names;
}

// Returns the names that the pattern matches. Throws Error where it matches none.
std::vector<std::string> matching(const std::vector<std::string>& names, const std::string& pattern,
                                  std::string_view key) {
  std::vector<std::string> found;
  for (const auto& name : names) {
    if (matches(pattern, name)) found.push_back(name);
  }
  if (found.empty()) {
    fail("job", "{} must match a parameter, but \"{}\" matches none{}", key, pattern,
         did_you_mean_pattern(pattern, names));
  }
  return found;
}

}  // namespace

bool guards_steps(const job::Job& job) {
  const auto& train = job.train;
  return !train.forward_only &&
         (train.skip_bad_steps > 0 || train.rerun || !train.skip_steps.empty());
}

compile::StepSpec step_spec(const job::Job& job, const graph::Graph& graph) {
  const auto& o = job.optimizer;
  compile::StepSpec spec;
  spec.optimizer = o.name;
  spec.options = job::attributes_of(o);
  spec.weight_decay = o.weight_decay;
  spec.evaluation = job.train.forward_only;
  spec.weight_decay_varies = weight_decay_varies(job);
  spec.guarded = guards_steps(job);
  if (o.clip_norm > 0) spec.clip_norm = o.clip_norm;
  const auto names = parameter_names(graph);
  for (const auto& pattern : job.model.frozen) {
    for (const auto& name : matching(names, pattern, "model.frozen")) spec.frozen.push_back(name);
  }
  std::map<std::string, size_t> group_of;  // by parameter
  for (const auto& group : o.groups) {
    const auto own = spec.groups.size();
    compile::OptimizerGroup parameters{{}, group.weight_decay};
    if (!group.name.empty()) parameters.others = group.name != o.name;
    for (const auto& pattern : group.match) {
      for (const auto& name : matching(names, pattern, "optimizer.group.match")) {
        const auto [assigned, first] = group_of.try_emplace(name, own);
        if (first) parameters.parameters.push_back(name);
        if (assigned->second == own || !o.apart) continue;
        fail("job",
             "a parameter is in one optimizer.group, but \"{}\" has {}, which is in group {}, too",
             pattern, name, assigned->second + 1);
      }
    }
    spec.groups.push_back(std::move(parameters));
  }
  return spec;
}

void require_trained(const job::Job& job, const graph::Graph& graph) {
  if (job.model.frozen.empty() || job.train.forward_only) return;
  const auto trains = [&](const graph::Input& input) {
    return input.kind == graph::Input::Kind::parameter && input.trainable &&
           !matches_any(job.model.frozen, input.name);
  };
  if (std::ranges::any_of(graph.inputs, trains)) return;
  fail("job",
       "model.frozen must leave a parameter to train, but it matches all of them: name fewer, or "
       "set train.forward_only = true");
}

job::Job with_fitted_batch(job::Job job, const plan::Plan& plan) {
  auto& batch = job.batch;
  if (batch.round) batch.global = methods::fitted_batch(plan, batch.global, batch.micro);
  return job;
}

}  // namespace perigee::train
