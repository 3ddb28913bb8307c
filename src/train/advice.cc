#include "train/advice.h"

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "compile/compile.h"
#include "plan/pipeline.h"
#include "search/report.h"
#include "search/simulate.h"
#include "train/known.h"
#include "train/local_cluster.h"
#include "train/step_spec.h"
#include "train/task_plan.h"

namespace perigee::train {
namespace {

using methods::Use;
using nlohmann::json;

constexpr size_t kMostLines = 6;
// Of a step's time; changes that gain less are not told.
constexpr double kLeastGain = 0.01;
// Of a step that a rank waits, above which that is what bounds it.
constexpr double kWaits = 0.3;

// A strategy with one change.
struct Variant {
  std::string what;
  std::vector<Use> uses;
  int64_t micro = 0;  // 0: the request's
  int64_t world = 0;  // 0: the request's
};

Use use_of(const json& method) {
  return methods::from_json(json::array({method}), "advice").methods.front();
}

class Variants {
 public:
  Variants(const methods::Strategy& strategy, const methods::Request& request,
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
          "amp_native { dtype = \"bfloat16\" } (which rounds)");
    }
    list_.push_back({.what = fmt::format("--nproc {}", 2 * plan_.mesh.size()),
                     .uses = strategy_.methods,
                     .world = 2 * plan_.mesh.size()});
    return std::move(list_);
  }

 private:
  static bool is(const Use& use, std::string_view name) { return use.method->name() == name; }
  const Use* find(std::string_view name) const {
    const auto found =
        std::ranges::find_if(strategy_.methods, [&](const auto& use) { return is(use, name); });
    return found == strategy_.methods.end() ? nullptr : &*found;
  }
  bool has_any(std::initializer_list<std::string_view> names) const {
    return std::ranges::any_of(names, [&](auto name) { return find(name) != nullptr; });
  }
  std::vector<Use> without(std::initializer_list<std::string_view> names) const {
    auto uses = strategy_.methods;
    std::erase_if(uses, [&](const auto& use) {
      return std::ranges::any_of(names, [&](auto name) { return is(use, name); });
    });
    return uses;
  }
  void add(const json& method, std::string what,
           std::initializer_list<std::string_view> in_place_of = {}) {
    auto uses = without(in_place_of);
    uses.push_back(use_of(method));
    list_.push_back({.what = std::move(what), .uses = std::move(uses)});
  }
  void either(std::string_view name, const json& method, std::string what) {
    if (!find(name)) return add(method, std::move(what));
    list_.push_back({.what = fmt::format("without {}", name), .uses = without({name})});
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
    const auto micro =
        request_.global_batch / step / std::max<int64_t>(1, plan::batch_ranks(plan_));
    if (micro % 2 == 0) change_micro(micro / 2);
    if (step > 1) change_micro(2 * micro);
  }
  void change_micro(int64_t micro) {
    list_.push_back({.what = fmt::format("batch.micro = {}", micro),
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
      list_.push_back({.what = "without parts of weights and states (zero1, zero2, fsdp)",
                       .uses = without({"zero1", "zero2", "fsdp"})});
    }
  }

  // Activations between tensor-parallel layers in parts.
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
    for (const std::string schedule : {"1f1b", "interleaved", "zb1p"}) {
      if (plan_.pipeline.schedule == schedule) continue;
      auto fields = pipeline->config.fields;
      for (const auto* key : {"chunks", "group", "extra", "costs", "starts"}) fields.erase(key);
      fields["schedule"] = schedule;
      add({"pipeline_parallel", fields},
          fmt::format("pipeline_parallel {{ schedule = \"{}\" }}", schedule),
          {"pipeline_parallel"});
    }
  }

  const methods::Strategy& strategy_;
  const methods::Request& request_;
  const plan::Plan& plan_;
  std::vector<Variant> list_;
};

// Returns what most of a step is, on the rank that waits the longest.
std::string bound_by(const search::Simulation& simulation, const compile::Programs& programs) {
  const auto& rank = *std::ranges::max_element(simulation.ranks, {}, &search::RankTime::waiting);
  const double share = rank.waiting / simulation.step_seconds;
  if (share < kWaits) return fmt::format("compute, {:.0f}% of a step", 100 * (1 - share));
  const auto found = std::ranges::find(programs.ranks, rank.rank);
  const auto& program = programs.of(static_cast<size_t>(found - programs.ranks.begin()));
  const auto busy = search::busy_by_kind(rank, program);
  return fmt::format("waits, {:.0f}% of a step on rank {}{}", 100 * share, rank.rank,
                     busy.empty() ? ""
                                  : fmt::format(", in which {} moves data for {}", busy[0].first,
                                                search::seconds_text(busy[0].second)));
}

// Makes plans of the job's model.
class Maker {
 public:
  Maker(const Planned& planned, std::string runtime_folder)
      : planned_(planned),
        runtime_folder_(std::move(runtime_folder)),
        known_(planned.job, planned.plan.mesh.size()) {}

  // Throws Error where there is no such plan. `bound` is filled where it is given.
  Change make(const methods::Strategy& strategy, methods::Request request, std::string what,
              std::string* bound = nullptr) {
    Change change{.what = std::move(what), .takes = {}, .plan = {}};
    const auto& graph = settle(strategy, request, change.plan);
    plan::verify(change.plan, graph);
    const auto cluster = cluster_of(planned_.job, change.plan.mesh.size(), runtime_folder_);
    search::OpCosts costs(cluster, known_.times());
    const auto programs = predict(change.plan, graph, planned_.job, known_.traces());
    const auto simulation = search::simulate(programs, change.plan.mesh, costs,
                                             {.stage_axis = change.plan.pipeline.axis});
    change.takes = {simulation.step_seconds,
                    static_cast<double>(std::ranges::max(change.plan.prediction.peak_bytes))};
    if (bound) *bound = bound_by(simulation, programs);
    return change;
  }

 private:
  // Fills the plan; returns the graph of the size that it needs.
  const graph::Graph& settle(const methods::Strategy& strategy, methods::Request& request,
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

  const Planned& planned_;
  std::string runtime_folder_;
  Known known_;
};

std::string more(double other, double now) {
  return now > 0 ? fmt::format(" ({:+.1f}%)", 100 * (other / now - 1)) : "";
}

std::string line_of(const Change& change, const Change& now) {
  return fmt::format(
      "\n  {}: {}{} a rank, {}{} a step", change.what, search::bytes_text(change.takes.peak_bytes),
      more(change.takes.peak_bytes, now.takes.peak_bytes),
      search::seconds_text(change.takes.seconds), more(change.takes.seconds, now.takes.seconds));
}

std::string lines_of(const std::vector<const Change*>& list, const Change& now) {
  std::string text;
  for (size_t i = 0; i < std::min(list.size(), kMostLines); ++i) text += line_of(*list[i], now);
  return text;
}

}  // namespace

Advice advise(const Planned& planned, const std::string& runtime_folder, double seconds) {
  const auto begin = std::chrono::steady_clock::now();
  methods::Request request;
  const auto* made = methods_of(planned, request);
  if (!made) return {};
  Maker maker(planned, runtime_folder);
  Advice advice;
  advice.now = maker.make(*made, request, "", &advice.bound_by);
  for (auto& variant : Variants(*made, request, planned.plan).all()) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (passed.count() > seconds) break;
    // This machine has the devices that it has.
    if (variant.world > 0 && planned.job.cluster.file.empty()) continue;
    auto strategy = *made;
    strategy.methods = std::move(variant.uses);
    auto asked = request;
    if (variant.micro > 0) asked.micro_batch = variant.micro;
    if (variant.world > 0) asked.world = variant.world;
    asked.world_given = asked.world_given || variant.world > 0;
    try {
      advice.changes.push_back(maker.make(strategy, asked, variant.what));
    } catch (const Error& error) {
      log::debug("advice: {} is left out: {}", variant.what, error.what());
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
    } else if (change.takes.peak_bytes < advice.now.takes.peak_bytes) {
      saving.push_back(&change);
    }
  }
  if (!fitting.empty()) {
    std::ranges::stable_sort(fitting, {}, [](const auto* c) { return c->takes.seconds; });
    return "change one of these, by which it fits:" + lines_of(fitting, advice.now);
  }
  if (saving.empty()) return "";
  std::ranges::stable_sort(saving, {}, [](const auto* c) { return c->takes.peak_bytes; });
  return "use more ranks, or several of these, each of which alone is not enough:" +
         lines_of(saving, advice.now);
}

std::string speed_advice(const Advice& advice) {
  if (advice.now.takes.seconds <= 0) return "";
  std::vector<const Change*> faster;
  for (const auto& change : advice.changes) {
    if (change.takes.seconds < (1 - kLeastGain) * advice.now.takes.seconds) {
      faster.push_back(&change);
    }
  }
  std::ranges::stable_sort(faster, {}, [](const auto* c) { return c->takes.seconds; });
  auto text = fmt::format("it is bound by {}; ", advice.bound_by);
  if (faster.empty()) return text + "no single change that was looked at makes it shorter\n";
  return text + "shorter with one of:" + lines_of(faster, advice.now) + "\n";
}

}  // namespace perigee::train
