#include "train/plan/advice.h"

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <optional>

#include "base/fail.h"
#include "base/log_format.h"
#include "base/text/bytes.h"
#include "compile/compile.h"
#include "plan/pipeline.h"
#include "schedule/description.h"
#include "simulate/report.h"
#include "simulate/simulate.h"
#include "train/measure/recorded_profile.h"
#include "train/plan/local_cluster.h"
#include "train/plan/predict_memory.h"
#include "train/step/step_spec.h"

namespace perigee::train {
namespace {

using methods::MethodUse;
using nlohmann::json;

constexpr size_t kMostLines = 6;
// Share of a step's time; changes that gain less are not listed.
constexpr double kMinGain = 0.01;
// Share of a step that a rank waits; above it, waits bound the step.
constexpr double kWaits = 0.3;

// A strategy with one change.
struct Variant {
  std::string text;
  std::vector<MethodUse> uses;
  int64_t micro = 0;  // 0: the request's
  int64_t world = 0;  // 0: the request's
};

MethodUse use_of(const json& method) {
  return methods::from_json(json::array({method}), "advice").methods.front();
}

class Variants {
 public:
  Variants(const methods::StrategySpec& strategy, const methods::PlanRequest& request,
           const plan::Plan& plan)
      : strategy_(strategy), request_(request), plan_(plan) {}

  std::vector<Variant> all() {
    microbatches();
    schedules();
    parts();
    sequence();
    either("checkpoint", {"checkpoint", {"auto"}}, "checkpoint { \"auto\" }");
    either("offload", {"offload", {{"optimizer", true}}}, "offload { optimizer = true }");
    if (!has_any({"amp_native", "half", "fp8"})) {
      add({"amp_native", {{"dtype", "bfloat16"}}},
          "amp_native { dtype = \"bfloat16\" } (rounds to 16 bits)");
    }
    list_.push_back({.text = fmt::format("--nproc {}", 2 * plan_.mesh.size()),
                     .uses = strategy_.methods,
                     .world = 2 * plan_.mesh.size()});
    return std::move(list_);
  }

 private:
  static bool is(const MethodUse& use, std::string_view name) { return use.method->name() == name; }
  const MethodUse* find(std::string_view name) const {
    const auto found = std::ranges::find_if(strategy_.methods,
                                            [&](const auto& use) { return is(use, name); });
    return found == strategy_.methods.end() ? nullptr : &*found;
  }
  bool has_any(std::initializer_list<std::string_view> names) const {
    return std::ranges::any_of(names, [&](auto name) { return find(name) != nullptr; });
  }
  std::vector<MethodUse> without(std::initializer_list<std::string_view> names) const {
    auto uses = strategy_.methods;
    std::erase_if(uses, [&](const auto& use) {
      return std::ranges::any_of(names, [&](auto name) { return is(use, name); });
    });
    return uses;
  }
  void add(const json& method, std::string text,
           std::initializer_list<std::string_view> in_place_of = {}) {
    auto uses = without(in_place_of);
    uses.push_back(use_of(method));
    list_.push_back({.text = std::move(text), .uses = std::move(uses)});
  }
  void either(std::string_view name, const json& method, std::string text) {
    if (!find(name)) return add(method, std::move(text));
    list_.push_back({.text = fmt::format("without {}", name), .uses = without({name})});
  }

  void microbatches() {
    const auto step = plan_.microbatches;
    if (find("gradient_accumulation")) {
      for (const auto count : {2 * step, step / 2}) {
        if (count < 1) continue;
        add({"gradient_accumulation", {{"microbatches", count}}},
            fmt::format("gradient_accumulation {{ microbatches = {} }}", count),
            {"gradient_accumulation"});
      }
      return;
    }
    const auto micro = request_.global_batch / step /
                       std::max<int64_t>(1, plan::batch_ranks(plan_));
    if (micro % 2 == 0) change_micro(micro / 2);
    if (step > 1) change_micro(2 * micro);
  }
  void change_micro(int64_t micro) {
    list_.push_back({.text = fmt::format("batch.micro = {}", micro),
                     .uses = strategy_.methods,
                     .micro = micro});
  }

  void parts() {
    if (plan::batch_ranks(plan_) < 2) return;
    for (const std::string level : {"zero1", "fsdp"}) {
      if (find(level)) continue;
      add(level, level, {"zero1", "zero2", "fsdp"});
    }
    if (has_any({"zero1", "zero2", "fsdp"})) {
      list_.push_back({.text = "without sharded weights and states (zero1, zero2, fsdp)",
                       .uses = without({"zero1", "zero2", "fsdp"})});
    }
  }

  // Sequence parallelism: activations between tensor-parallel layers sharded on the sequence.
  void sequence() {
    const auto* tensor = find("tensor_parallel");
    if (!tensor || tensor->config.fields.contains("sequence")) return;
    auto fields = tensor->config.fields;
    fields["sequence"] = true;
    add({"tensor_parallel", fields}, "tensor_parallel { sequence = true }", {"tensor_parallel"});
  }

  void schedules() {
    const auto* pipeline = find("pipeline_parallel");
    if (!pipeline || !plan_.pipeline.cuts()) return;
    for (const auto& description : schedule::descriptions()) {
      const auto& schedule = description.name;
      if (!description.suggested || plan_.pipeline.schedule == schedule) continue;
      auto fields = pipeline->config.fields;
      for (const auto* key : {"chunks", "group", "extra", "costs", "starts"}) fields.erase(key);
      fields["schedule"] = schedule;
      add({"pipeline_parallel", fields},
          fmt::format("pipeline_parallel {{ schedule = \"{}\" }}", schedule),
          {"pipeline_parallel"});
    }
  }

  const methods::StrategySpec& strategy_;
  const methods::PlanRequest& request_;
  const plan::Plan& plan_;
  std::vector<Variant> list_;
};

// Returns what bounds the step on the rank that waits the longest.
std::string bound_by(const simulate::Simulation& simulation, const compile::Programs& programs) {
  const auto& rank = *std::ranges::max_element(simulation.ranks, {}, &simulate::RankTime::waiting);
  const double share = rank.waiting / simulation.step_seconds;
  if (share < kWaits) return fmt::format("compute, {:.0f}% of a step", 100 * (1 - share));
  const auto found = std::ranges::find(programs.ranks, rank.rank);
  const auto& program = programs.of(static_cast<size_t>(found - programs.ranks.begin()));
  const auto busy = simulate::busy_by_kind(rank, program);
  return fmt::format("waits, {:.0f}% of a step on rank {}{}", 100 * share, rank.rank,
                     busy.empty() ? ""
                                  : fmt::format(", in which {} moves data for {}", busy[0].first,
                                                simulate::seconds_text(busy[0].second)));
}

// Makes plans of the job's model and simulates them.
class PlanMaker {
 public:
  PlanMaker(const PlannedJob& planned, std::string runtime_folder)
      : planned_(planned),
        runtime_folder_(std::move(runtime_folder)),
        recorded_(planned.job, ranks_per_host({planned.plan.mesh.size(), planned.hosts})) {}

  // Throws Error where there is no such plan. Fills `bound`, if any, with Advice::bound_by.
  Change make(const methods::StrategySpec& strategy, methods::PlanRequest request, std::string text,
              std::string* bound = nullptr) {
    Change change{.text = std::move(text), .cost = {}, .plan = {}};
    const auto& graph = settle(strategy, request, change.plan);
    plan::verify(change.plan, graph);
    const auto cluster = cluster_of(planned_.job, {change.plan.mesh.size(), planned_.hosts},
                                    runtime_folder_);
    simulate::OpCosts costs(cluster, recorded_.times());
    const auto programs = predict(change.plan, graph, planned_.job, recorded_.traces());
    const auto simulation = simulate::simulate(programs, change.plan.mesh, costs,
                                               {.stage_axis = change.plan.pipeline.axis});
    change.cost = {simulation.step_seconds,
                   static_cast<double>(std::ranges::max(change.plan.prediction.peak_bytes))};
    if (bound) *bound = bound_by(simulation, programs);
    return change;
  }

 private:
  // Makes the plan and returns the graph of the size that the plan needs.
  const graph::Graph& settle(const methods::StrategySpec& strategy, methods::PlanRequest& request,
                             plan::Plan& plan) const {
    auto samples = request.global_batch / planned_.plan.microbatches;
    for (int tries = 0; tries < 3; ++tries) {
      const auto& graph = planned_.source->at(samples, planned_.job.train.forward_only).graph;
      request.graph = &graph;
      plan = methods::make_plan(strategy, request);
      const auto wanted = methods::graph_batch(plan, request);
      if (wanted == samples) return graph;
      samples = wanted;
    }
    fail("plan", "the strategy does not settle");
  }

  const PlannedJob& planned_;
  std::string runtime_folder_;
  RecordedProfile recorded_;
};

std::string more(double other, double now) {
  return now > 0 ? fmt::format(" ({:+.1f}%)", 100 * (other / now - 1)) : "";
}

std::string line_of(const Change& change, const Change& now) {
  return fmt::format(
      "\n  {}: {}{} a rank, {}{} a step", change.text, bytes_text(change.cost.peak_bytes),
      more(change.cost.peak_bytes, now.cost.peak_bytes),
      simulate::seconds_text(change.cost.seconds), more(change.cost.seconds, now.cost.seconds));
}

std::string lines_of(const std::vector<const Change*>& list, const Change& now) {
  std::string text;
  for (size_t i = 0; i < std::min(list.size(), kMostLines); ++i) text += line_of(*list[i], now);
  return text;
}

}  // namespace

Advice advise(const PlannedJob& planned, const std::string& runtime_folder, double seconds) {
  const auto begin = std::chrono::steady_clock::now();
  methods::PlanRequest request;
  const auto* made = methods_of(planned, request);
  if (!made) return {};
  PlanMaker maker(planned, runtime_folder);
  Advice advice;
  advice.now = maker.make(*made, request, "", &advice.bound_by);
  for (auto& variant : Variants(*made, request, planned.plan).all()) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (passed.count() > seconds) break;
    // More ranks than this machine has are planned only for a described cluster.
    if (variant.world > 0 && planned.job.cluster.file.empty()) continue;
    auto strategy = *made;
    strategy.methods = std::move(variant.uses);
    auto asked = request;
    if (variant.micro > 0) asked.micro_batch = variant.micro;
    if (variant.world > 0) asked.world = variant.world;
    asked.world_given = asked.world_given || variant.world > 0;
    try {
      advice.changes.push_back(maker.make(strategy, asked, variant.text));
    } catch (const Error& error) {
      log::debug("advice: {} is left out: {}", variant.text, error.what());
    }
  }
  return advice;
}

std::string memory_advice(const Advice& advice,
                          const std::function<bool(const plan::Plan&)>& fits) {
  std::vector<const Change*> fitting, saving;
  for (const auto& change : advice.changes) {
    if (fits(change.plan)) {
      fitting.push_back(&change);
    } else if (change.cost.peak_bytes < advice.now.cost.peak_bytes) {
      saving.push_back(&change);
    }
  }
  if (!fitting.empty()) {
    std::ranges::stable_sort(fitting, {}, [](const auto* c) { return c->cost.seconds; });
    return "make one of these changes, with each of which it fits:" + lines_of(fitting, advice.now);
  }
  if (saving.empty()) return "";
  std::ranges::stable_sort(saving, {}, [](const auto* c) { return c->cost.peak_bytes; });
  return "use more ranks, or several of these changes (none alone is enough):" +
         lines_of(saving, advice.now);
}

std::string speed_advice(const Advice& advice, const std::function<bool(const plan::Plan&)>& fits) {
  if (advice.now.cost.seconds <= 0) return "";
  std::vector<const Change*> faster;
  for (const auto& change : advice.changes) {
    const bool is_faster = change.cost.seconds < (1 - kMinGain) * advice.now.cost.seconds;
    if (is_faster && fits(change.plan)) faster.push_back(&change);
  }
  std::ranges::stable_sort(faster, {}, [](const auto* c) { return c->cost.seconds; });
  auto text = fmt::format("it is bound by {}; ", advice.bound_by);
  if (faster.empty()) return text + "none of the changes that were tried makes it shorter\n";
  return text + "shorter with one of:" + lines_of(faster, advice.now) + "\n";
}

}  // namespace perigee::train
