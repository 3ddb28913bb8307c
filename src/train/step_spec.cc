#include "train/step_spec.h"

#include <toml++/toml.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/match.h"
#include "methods/method.h"
#include "train/weight_decay.h"

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
         did_you_mean(pattern, names));
  }
  return found;
}

}  // namespace

compile::StepSpec step_spec(const job::Job& job, const graph::Graph& graph) {
  const auto& o = job.optimizer;
  compile::StepSpec spec;
  spec.optimizer = o.name;
  spec.beta1 = o.betas.at(0);
  spec.beta2 = o.betas.at(1);
  spec.eps = o.eps;
  spec.momentum = o.momentum;
  spec.dampening = o.dampening;
  spec.nesterov = o.nesterov;
  spec.beta2_decay = o.beta2_decay;
  spec.clip_threshold = o.clip_threshold;
  spec.ns_steps = o.ns_steps;
  spec.weight_decay = o.weight_decay;
  spec.evaluation = job.train.forward_only;
  spec.weight_decay_varies = weight_decay_varies(job);
  if (o.clip_norm > 0) spec.clip_norm = o.clip_norm;
  const auto names = parameter_names(graph);
  for (const auto& pattern : job.model.frozen) {
    for (const auto& name : matching(names, pattern, "model.frozen")) spec.frozen.push_back(name);
  }
  std::map<std::string, size_t> taken;  // by which group
  for (const auto& group : o.groups) {
    const auto own = spec.groups.size();
    compile::OptimizerGroup parameters{{}, group.weight_decay};
    if (!group.name.empty()) parameters.muon = group.name == "muon";
    for (const auto& pattern : group.match) {
      for (const auto& name : matching(names, pattern, "optimizer.group.match")) {
        const auto [known, first] = taken.try_emplace(name, own);
        if (first) parameters.parameters.push_back(name);
        if (known->second == own || !o.apart) continue;
        fail("job",
             "a parameter is in one optimizer.group, but \"{}\" has {}, which is in group {}, too",
             pattern, name, known->second + 1);
      }
    }
    spec.groups.push_back(std::move(parameters));
  }
  return spec;
}

nlohmann::json describe(const job::Job& job) {
  std::ostringstream text;
  text << toml::json_formatter(toml::parse(job::to_toml(job)));
  return nlohmann::json::parse(text.str());
}

job::Job with_fitted_batch(job::Job job, const plan::Plan& plan) {
  auto& batch = job.batch;
  if (batch.round) batch.global = methods::fitted_batch(plan, batch.global, batch.micro);
  return job;
}

}  // namespace perigee::train
