// Automatic stages of the planner of strategy scripts: search/stages applied to a job's model.
#include <algorithm>

#include "methods/method.h"
#include "search/stages/describe_stages.h"
#include "search/stages/plan_stages.h"
#include "train/plan/ask_devices.h"
#include "train/plan/auto_planner.h"

namespace perigee::train {

using nlohmann::json;

json AutoPlanner::stage_table(const json& options, const lua::Defined& defined) {
  // A strategy function is called a second time where the plan needs a capture at another size.
  auto& known = stages_[options.dump()];
  if (known) return *known;
  search::StagesRequest asked;
  asked.cluster = cluster_.name;
  const auto per_host = cluster_.links.size() > 1 ? std::min(cluster_.links.front().ranks, world_)
                                                  : world_;
  asked.devices_per_host = world_ % per_host == 0 ? per_host : world_;
  asked.hosts = world_ / asked.devices_per_host;
  asked.global_batch = job_.batch.global;
  asked.defined = defined;
  asked.request = [&](int64_t samples) {
    auto request = method_request();
    request.graph = &source_->at(samples, job_.train.forward_only).graph;
    request.samples = samples;
    ask_devices(request, job_, [this](int64_t) { return cluster_; },
                {std::shared_ptr<void>(), &recorded_.traces()});
    return request;
  };
  const auto pins = options.contains("estimated") ? json{{"estimated", options["estimated"]}}
                                                  : json::object();
  asked.seconds = [&](const json& strategy) {
    return estimate(strategy, pins, defined)["seconds"].get<double>();
  };
  known = std::make_shared<const json>(search::plan_stages(options, asked));
  stages_made_.push_back(known);
  return *known;
}

std::shared_ptr<const json> AutoPlanner::stages_of(const methods::StrategySpec& strategy) const {
  return search::stages_chosen_by(strategy, stages_made_);
}

}  // namespace perigee::train
