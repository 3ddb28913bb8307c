// AutoPlanner's answers about given strategies: their predicted times and memory, and measured ops;
// and its search for stages, which judges strategies.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/fail.h"
#include "methods/method.h"
#include "search/explain/method_costs.h"
#include "search/stages/describe_stages.h"
#include "search/stages/plan_stages.h"
#include "simulate/op_table.h"
#include "simulate/report.h"
#include "train/measure/profile_path.h"
#include "train/measure/profiling.h"
#include "train/plan/ask_devices.h"
#include "train/plan/auto_planner.h"
#include "train/ranks/device.h"

namespace perigee::train {

using nlohmann::json;

json AutoPlanner::describe(const compile::Programs& programs, const plan::Plan& plan,
                           const search::Pins& pins) {
  simulate::OpCosts costs(cluster_, times(pins));
  const auto simulation = simulate::simulate(programs, plan.mesh, costs,
                                             {.stage_axis = plan.pipeline.axis});
  const auto prediction = compile::predict_memory(programs);
  return {{"seconds", simulation.step_seconds},
          {"bubble_ratio", simulation.bubble_ratio},
          {"measured_share", simulation.measured_share},
          {"peak_bytes", search::peak_bytes(pins.model, programs, plan, prediction)}};
}

json AutoPlanner::estimate(const json& strategy, const json& pins, const lua::Defined& defined) {
  // The same in a second call of the strategy function, unless times were measured meanwhile.
  auto& known = estimates_of_[strategy.dump() + pins.dump()];
  if (known.is_null()) {
    const auto parsed = search::parse_pins(pins);
    use_devices(parsed);
    plan::Plan plan;
    const auto programs = compile(strategy, defined, plan, recorded_.traces());
    known = describe(programs, plan, parsed);
  }
  return known;
}

json AutoPlanner::costs(const json& strategy, const std::string& method,
                        const lua::Defined& defined) {
  std::optional<plan::Plan> whole;
  const auto judge = [&](const json& methods) {
    plan::Plan plan;
    const auto taken = describe(compile(methods, defined, plan, recorded_.traces()), plan);
    if (!whole) whole = std::move(plan);
    return search::PlanCost{taken["seconds"], taken["peak_bytes"]};
  };
  const auto own = [&](const json& use, const search::PlanCost& with,
                       const std::optional<search::PlanCost>& without) {
    const auto parsed = methods::from_json(json::array({use}), "the strategy", defined);
    const auto& [known, config] = parsed.methods.front();
    auto request = method_request();
    const auto samples = methods::graph_batch(*whole, request);
    const auto source = source_->with(whole->adapters);
    request.graph = &source->at(samples, job_.train.forward_only).graph;
    return known->cost(*whole, config, request, with, without);
  };
  auto list = json::array();
  for (const auto& cost : search::method_costs(strategy, judge, method, own)) {
    if (!cost.refused.empty()) {
      list.push_back({{"method", cost.method}, {"refused", cost.refused}});
      continue;
    }
    list.push_back({{"method", cost.method}, {"seconds", cost.seconds}, {"bytes", cost.bytes}});
    if (cost.own) list.back()["own"] = true;
  }
  return list;
}

json AutoPlanner::op_times(const json& strategy, const lua::Defined& defined) {
  plan::Plan plan;
  const auto programs = compile(strategy, defined, plan, recorded_.traces());
  simulate::OpCosts costs(cluster_, recorded_.times());
  auto list = json::array();
  for (const auto& row : simulate::scope_table(programs, plan.mesh, costs)) {
    list.push_back({{"scope", row.scope},
                    {"backward", row.backward},
                    {"op", row.name},
                    {"runs", row.runs},
                    {"seconds", row.seconds},
                    {"flops", row.flops},
                    {"bytes", row.bytes},
                    {"measured_share", row.seconds > 0 ? row.measured / row.seconds : 0}});
    if (!row.stream.empty()) list.back()["stream"] = row.stream;
  }
  return list;
}

json AutoPlanner::measure(const json& strategy, double seconds, const lua::Defined& defined) {
  if (!job_.cluster.file.empty()) {
    fail("profile", "ops are measured on this machine, but the job is planned for {}",
         cluster_.name);
  }
  plan::Plan plan;
  const auto device = open_device(job_);
  profile::Database database(profile_of(job_));
  const auto threads = static_cast<int>(job_.cluster.threads);
  profile::TraceDatabase traces(database, threads, device);
  const auto programs = compile(strategy, defined, plan, traces);
  auto times = times_of(database, *device, job_, /*ranks=*/1);
  const auto& from = job_.data;
  const bool given = !from.text.empty() || !from.tokens.empty() || !from.tensors.empty();
  data::Data data;  // an application brings its own to the trainer alone
  if (given || from.synthetic) data = data::open_data(job_, data::division_of(plan));
  const auto done = profile_ops(programs, plan.mesh, job_, device, data.training.get(), times,
                                seconds);
  estimates_of_.clear();
  recorded_.forget();
  auto result = describe(programs, plan);
  result["ops"] = done.ops.size();
  result["measured"] = done.measured.size() + done.known.size();
  return result;
}

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
  asked.cost = [&](const json& strategy) {
    const auto taken = estimate(strategy, pins, defined);
    return methods::PlanCost{taken["seconds"], taken["peak_bytes"]};
  };
  known = std::make_shared<const json>(search::plan_stages(options, asked));
  stages_made_.push_back(known);
  return *known;
}

std::shared_ptr<const json> AutoPlanner::stages_of(const methods::StrategySpec& strategy) const {
  return search::stages_chosen_by(strategy, stages_made_);
}

}  // namespace perigee::train
