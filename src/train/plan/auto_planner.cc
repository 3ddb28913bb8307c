#include "train/plan/auto_planner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "base/fail.h"
#include "base/log_format.h"
#include "base/text/bytes.h"
#include "cost/host_devices.h"
#include "methods/method.h"
#include "search/explain/chosen.h"
#include "search/explain/explain.h"
#include "search/explain/features.h"
#include "search/trials.h"
#include "simulate/report.h"
#include "train/plan/ask_devices.h"
#include "train/step/step_spec.h"

namespace perigee::train {

using nlohmann::json;

// Plans of a trial that are compiled and simulated.
constexpr size_t kJudgedOfTrial = 3;
// Estimates of other plans may be too long by kErrorRatio times the error of the best plan's ops. A
// plan counts as measured if at most the share kMaxEstimated of its time is estimated.
constexpr double kErrorRatio = 1.5, kMaxEstimated = 0.05;
// Seconds above which a search logs the pins that shorten it.
constexpr double kSlow = 10;
// Where no plan fits: time limit of the search for the memory that a plan would need.
constexpr double kMissingSeconds = 2;

AutoPlanner::AutoPlanner(std::shared_ptr<const ModelSource> source, const job::Job& job,
                         const HostedRanks& ranks, std::string runtime_folder, bool eight_bits)
    : source_(std::move(source)),
      job_(job),
      world_(ranks.count),
      sharing_ranks_(sharing_ranks(job, ranks)),
      eight_bits_(eight_bits),
      cluster_(cluster_of(job, ranks, runtime_folder)),
      whole_(cluster_),
      recorded_(job, ranks_per_host(ranks)) {}

search::Request AutoPlanner::request(const json& pins, const lua::Defined& defined) {
  search::Request request;
  request.defined = defined;
  request.spec = [this](const graph::Graph& graph) { return step_spec(job_, graph); };
  request.global_batch = job_.batch.global;
  request.world = world_;
  request.eight_bits = eight_bits_;
  request.sharing_ranks = sharing_ranks_;
  request.pins = search::parse_pins(pins);
  use_devices(request.pins);
  const auto pinned = methods::from_json(request.pins.methods, "pins", defined);
  request.graph = [this,
                   source = with_adapters_of(pinned)](int64_t samples) -> const graph::Graph& {
    return source->at(samples, job_.train.forward_only).graph;
  };
  if (!request.pins.micro && job_.batch.micro > 0) request.pins.micro = job_.batch.micro;
  return request;
}

// Returns the source with the adapters of the methods.
std::shared_ptr<const ModelSource> AutoPlanner::with_adapters_of(
    const methods::StrategySpec& strategy) const {
  const auto lora = std::ranges::find_if(
      strategy.methods, [](const auto& use) { return use.method->name() == "lora"; });
  if (lora == strategy.methods.end()) return source_;
  auto request = method_request();
  request.graph = &source_->at(job_.batch.global, job_.train.forward_only).graph;
  plan::Plan plan;
  lora->method->apply(plan, lora->config, request);
  return source_->with(plan.adapters);
}

// Leaves out the devices of each host of a described cluster that the pins exclude.
void AutoPlanner::use_devices(const search::Pins& pins) {
  if (job_.cluster.file.empty()) return;
  cluster_ = pins.host_devices > 0 ? cost::host_devices(whole_, pins.host_devices) : whole_;
  if (cluster_.ranks() >= world_) return;
  fail("auto", "with {} devices of each host {} has {} ranks, but the plan needs {}",
       pins.host_devices, whole_.name, cluster_.ranks(), world_);
}

cost::Measurements& AutoPlanner::times(const search::Pins& pins) {
  return pins.estimated ? estimates_ : recorded_.times();
}

std::string AutoPlanner::without_pins(const json& pins, const lua::Defined& defined,
                                      std::optional<double> seconds) {
  std::string text;
  const auto begin = std::chrono::steady_clock::now();
  const auto attempt = [&](const std::string& what, search::Request asked) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (seconds && passed.count() >= *seconds) return;
    if (seconds) asked.pins.time_limit = *seconds - passed.count();
    try {
      const auto found = search::find(asked, cluster_, times(asked.pins), recorded_.traces());
      text += fmt::format(
          "\n  {}: {} a rank, {} a step ({})", what, bytes_text(found.best.peak_bytes),
          simulate::seconds_text(found.best.seconds), search::to_string(found.best.choice));
    } catch (const Error& error) {
      log::debug("auto: {}: {}", what, error.what());
    }
  };
  for (const auto& [key, value] : pins.items()) {
    if (key == "methods" || key == "time_limit" || key == "solver" || key == "estimated") continue;
    auto others = pins;
    others.erase(key);
    attempt(fmt::format("without {} = {}", key, value.dump()), request(others, defined));
  }
  if (job_.batch.micro > 0 && !pins.contains("micro")) {
    auto asked = request(pins, defined);
    asked.pins.micro.reset();
    attempt(fmt::format("without batch.micro = {}", job_.batch.micro), std::move(asked));
  }
  if (!pins.contains("precision") && job_.model.dtype.starts_with("float")) {
    auto lower = pins;
    lower["precision"] = {"half"};
    attempt("with precision = { \"half\" }, parameters of 16 bits", request(lower, defined));
  }
  return text.empty() ? "" : "; a plan fits with one of these changes:" + text;
}

search::Found AutoPlanner::find(const json& pins, const lua::Defined& defined) {
  const auto begin = std::chrono::steady_clock::now();
  auto asked = request(pins, defined);
  asked.seconds_for_more = std::min(kMissingSeconds,
                                    asked.pins.time_limit.value_or(kMissingSeconds));
  search::Found found;
  try {
    found = search::find(asked, cluster_, times(asked.pins), recorded_.traces());
  } catch (const Error& error) {
    if (error.status() != Status::infeasible) throw;
    auto left = asked.pins.time_limit;
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (left) *left -= passed.count();
    const auto more = without_pins(pins, defined, left);
    if (more.empty()) throw;
    const std::string area = "[auto] ";
    throw Error(Status::infeasible, "auto", std::string(error.what()).substr(area.size()) + more);
  }
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  if (passed.count() > kSlow || found.stopped) {
    log::info(
        "the search took {:.1f} s for {} combinations; fewer are searched with a key pinned "
        "(solver.plan, runtime/lua.md): {}",
        passed.count(), found.combinations, search::narrowing(found.all, found.best.choice));
  }
  if (found.stopped) {
    log::info("the search was stopped after {} s: {} by the model, with a lower bound of {}",
              *asked.pins.time_limit, simulate::seconds_text(found.best.estimate.seconds),
              simulate::seconds_text(found.lower_bound));
  }
  return found;
}

std::optional<json> AutoPlanner::runner_up(const search::Found& found,
                                           const std::function<bool(const json&)>& skip) {
  recorded_.forget();
  const auto simulate = [&](const json& strategy, cost::Measurements& times) {
    plan::Plan plan;
    const auto programs = compile(strategy, {}, plan, recorded_.traces());
    simulate::OpCosts costs(cluster_, times);
    return simulate::simulate(programs, plan.mesh, costs, {.stage_axis = plan.pipeline.axis});
  };
  const double best = found.best.seconds;
  const double estimated = simulate(found.best.strategy, estimates_).ranks.front().compute;
  const double measured = found.simulation.ranks.front().compute;
  const double longer = kErrorRatio * std::max(1.0, estimated / measured);
  std::vector<search::Choice> seen;
  for (const auto& other : found.others) {
    const double expected = other.judged ? other.seconds : other.estimate.seconds;
    if (!other.refused.empty() || expected > longer * best || skip(other.strategy)) continue;
    const auto equivalent = [&](const auto& choice) {
      return search::same_ops(choice, other.choice);
    };
    if (std::ranges::any_of(seen, equivalent)) continue;
    seen.push_back(other.choice);
    try {
      const auto simulation = simulate(other.strategy, recorded_.times());
      const double open = 1 - simulation.measured_share;
      const double least = simulation.step_seconds * (1 - open + open / longer);
      log::debug("auto: {} takes {}, {:.0f}% estimated; lower bound {}, best plan {}",
                 search::to_string(other.choice), simulate::seconds_text(simulation.step_seconds),
                 100 * open, simulate::seconds_text(least), simulate::seconds_text(best));
      if (open > kMaxEstimated && least < best) return other.strategy;
    } catch (const Error& error) {
      log::debug("auto: {}: {}", search::to_string(other.choice), error.what());
    }
  }
  return std::nullopt;
}

json AutoPlanner::plan(const json& pins, const lua::Defined& defined) {
  // A strategy function is called a second time where the plan needs a capture at another size.
  auto& known = plans_[pins.dump()];
  if (known.is_null()) {
    const auto found = std::make_shared<const search::Found>(find(pins, defined));
    made_.push_back(found);
    defined_ = defined;
    known = {{"strategy", found->best.strategy},
             {"seconds", found->best.estimate.seconds},
             {"lower_bound", found->lower_bound},
             {"stopped", found->stopped}};
  }
  return known;
}

std::shared_ptr<search::Found> AutoPlanner::explain(const methods::StrategySpec& strategy,
                                                    plan::Plan plan, const graph::Graph& graph) {
  try {
    auto found = search::chosen_by(strategy, {made_, defined_});
    if (!found) return nullptr;
    const auto spec = step_spec(job_, graph);
    plan = compile::fit_recompute(graph, std::move(plan), spec, recorded_.traces());
    const auto programs = compile::compile_all(graph, plan, spec, recorded_.traces());
    simulate::OpCosts costs(cluster_, recorded_.times());
    found->simulation = simulate::simulate(programs, plan.mesh, costs,
                                           {.stage_axis = plan.pipeline.axis});
    found->best.judged = true;
    found->best.seconds = found->simulation.step_seconds;
    const auto peaks = compile::predict_memory(programs).peak_bytes;
    found->best.peak_bytes = static_cast<double>(*std::ranges::max_element(peaks));
    found->plan = std::move(plan);
    search::explain(*found, cluster_.name, std::nullopt);
    return found;
  } catch (const Error& error) {
    log::debug("auto: the plan is not explained: {}", error.what());
    return nullptr;  // what needs the programs reports the error at the method that caused it
  }
}

json AutoPlanner::candidates(const json& pins, int64_t most, const lua::Defined& defined) {
  auto& list = candidates_[fmt::format("{} {}", most, pins.dump())];
  if (!list.is_null()) return list;
  const auto asked = request(pins, defined);
  const auto found = std::make_shared<const search::Found>(search::rank(
      asked, cluster_, times(asked.pins), recorded_.traces(), static_cast<size_t>(most)));
  made_.push_back(found);
  defined_ = defined;
  list = json::array();
  for (const auto& candidate : found->others) {
    const auto& choice = candidate.choice;
    const auto& parts = candidate.estimate.parts;
    auto submeshes = json::array();
    for (const auto& [tensor, data] : choice.submeshes) {
      submeshes.push_back({{"tensor", tensor}, {"data", data}});
    }
    list.push_back({{"strategy", candidate.strategy},
                    {"seconds", candidate.estimate.seconds},
                    {"bytes", candidate.estimate.bytes},
                    {"text", search::to_string(choice)},
                    {"tensor", choice.tensor},
                    {"expert", choice.expert},
                    {"context", choice.context},
                    {"attention", choice.attention},
                    {"data", choice.data},
                    {"pipe", choice.pipe},
                    {"micro", choice.micro},
                    {"microbatches", choice.microbatches},
                    {"schedule", choice.schedule},
                    {"chunks", choice.chunks},
                    {"sequence", choice.sequence},
                    {"checkpoint",
                     choice.checkpoint && (choice.every > 0 || !choice.recomputed_blocks.empty())},
                    {"every", choice.every},
                    {"selective", choice.selective},
                    {"zero", choice.zero},
                    {"precision", choice.precision},
                    {"offload", choice.offload},
                    {"parts",
                     {{"compute", parts.compute},
                      {"tensor", parts.tensor},
                      {"bubble", parts.bubble},
                      {"data", parts.data},
                      {"optimizer", parts.optimizer}}}});
    if (!submeshes.empty()) list.back()["submeshes"] = std::move(submeshes);
  }
  return list;
}

json AutoPlanner::search(const json& pins, const json& options, const lua::Defined& defined) {
  auto& known = searches_[pins.dump() + options.dump()];
  if (!known.is_null()) return known;
  search::Variables variables;
  const auto asked = search::parse_trials(options, variables);
  const auto attempt = [&](search::Trial& trial, double left) {
    auto limited = trial.pins;
    if (std::isfinite(left)) {
      const auto own = search::parse_pins(limited).time_limit.value_or(left);
      limited["time_limit"] = std::max(std::min(own, left), 1e-3);
    }
    auto few = request(limited, defined);
    few.most_judged = kJudgedOfTrial;
    const auto found = search::find(few, cluster_, times(few.pins), recorded_.traces());
    trial.strategy = found.best.strategy;
    trial.seconds = found.best.seconds;
    trial.bytes = found.best.peak_bytes;
    if (asked.measure <= 0) return;
    const auto taken = measure(trial.strategy, std::min(asked.measure, std::max(left, 1e-3)),
                               defined);
    trial.seconds = taken["seconds"];
    trial.bytes = taken["peak_bytes"];
  };
  const auto now = [] {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(since).count();
  };
  const auto tried = search::run_trials(pins, variables, asked, attempt, now);
  if (tried.best < 0) {
    throw Error(Status::infeasible, "search",
                fmt::format("no plan fits: {} of {} combinations were tried{}", tried.list.size(),
                            tried.combinations,
                            tried.list.empty() ? "" : "; the last: " + tried.list.back().refused));
  }
  auto list = json::array();
  for (const auto& trial : tried.list) {
    json row = {{"options", trial.options}};
    if (trial.refused.empty()) {
      row["strategy"] = trial.strategy;
      row["seconds"] = trial.seconds;
      row["bytes"] = trial.bytes;
    } else {
      row["refused"] = trial.refused;
    }
    list.push_back(std::move(row));
  }
  const auto& best = tried.list[static_cast<size_t>(tried.best)];
  known = {{"strategy", best.strategy}, {"seconds", best.seconds},
           {"bytes", best.bytes},       {"ended", tried.ended},
           {"trials", std::move(list)}, {"combinations", tried.combinations}};
  return known;
}

methods::PlanRequest AutoPlanner::method_request() const {
  methods::PlanRequest request;
  request.global_batch = job_.batch.global;
  request.micro_batch = job_.batch.micro;
  request.round = job_.batch.round;
  request.frozen = job_.model.frozen;
  request.world = world_;
  request.world_given = true;
  request.eight_bits = eight_bits_;
  request.sharing_ranks = sharing_ranks_;
  request.device_bytes = [this](int64_t) { return cluster_.least_memory(); };
  return request;
}

const graph::Graph& AutoPlanner::make(const json& strategy, const lua::Defined& defined,
                                      compile::TraceSource& traces, plan::Plan& plan) const {
  const auto parsed = methods::from_json(strategy, "the strategy", defined);
  auto request = method_request();
  auto samples = job_.batch.global;
  for (int tries = 0; tries < 3; ++tries) {
    const auto& graph = source_->at(samples, job_.train.forward_only).graph;
    request.graph = &graph;
    request.samples = samples;
    ask_devices(request, job_, [this](int64_t) { return cluster_; },
                {std::shared_ptr<void>(), &traces});
    plan = methods::make_plan(parsed, request);
    const auto wanted = methods::graph_batch(plan, request);
    if (wanted == samples) {
      adapted_ = source_->with(plan.adapters);
      const auto& made = adapted_->at(samples, job_.train.forward_only).graph;
      plan::verify(plan, made);
      return made;
    }
    samples = wanted;
  }
  fail("plan", "the strategy must ask for the same samples whatever it sees, but does not settle");
}

compile::Programs AutoPlanner::compile(const json& strategy, const lua::Defined& defined,
                                       plan::Plan& plan, compile::TraceSource& traces) const {
  const auto& graph = make(strategy, defined, traces, plan);
  const auto spec = step_spec(job_, graph);
  plan = compile::fit_recompute(graph, std::move(plan), spec, traces);
  return compile::compile_all(graph, plan, spec, traces);
}

json AutoPlanner::plan_of(const json& strategy, const lua::Defined& defined) {
  plan::Plan plan;
  make(strategy, defined, recorded_.traces(), plan);
  return json::parse(plan::print(plan));
}

}  // namespace perigee::train
