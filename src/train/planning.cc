#include "train/planning.h"

#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "lua/strategy.h"
#include "methods/method.h"
#include "methods/placed.h"
#include "train/ask_devices.h"
#include "train/auto_plan.h"
#include "train/connect.h"
#include "train/known.h"
#include "train/local_cluster.h"
#include "train/step_spec.h"
#include "train/task_plan.h"

namespace perigee {

Source::Source(std::shared_ptr<torch::nn::Module> module, Batch example, Forward forward,
               std::vector<std::string> batched)
    : module_(std::move(module)),
      example_(std::move(example)),
      forward_(std::move(forward)),
      batched_(std::move(batched)) {
  if (example_.empty()) fail("capture", "a batch needs at least one tensor, but it has none");
  std::vector<std::string> names;
  for (const auto& [name, tensor] : example_) names.push_back(name);
  for (const auto& name : batched_) {
    if (example_.contains(name)) continue;
    fail("job", "data.batched names inputs of the model ({}), but got \"{}\"{}",
         fmt::join(names, ", "), name, did_you_mean(name, names));
  }
}

bool Source::is_batched(const std::string& name) const {
  return batched_.empty() || std::find(batched_.begin(), batched_.end(), name) != batched_.end();
}

void Source::check(const Job& job) const {
  for (const auto& [name, tensor] : example_) {
    if (is_batched(name) == job.data.is_batched(name)) continue;
    fail("job",
         "the model's source and data.batched must agree, but \"{}\" is a batch for {} alone", name,
         is_batched(name) ? "the source" : "the job");
  }
}

// Returns the example with `samples` in place of dim 0 of what is a batch, without memory.
Batch Source::resized(int64_t samples) const {
  Batch result;
  for (const auto& [name, tensor] : example_) {
    auto sizes = tensor.sizes().vec();
    if (is_batched(name)) {
      if (sizes.empty()) {
        fail("capture",
             "dim 0 of a batch's tensors is the samples, but {} is a scalar: where it is the same "
             "for all samples, leave it out of data.batched",
             name);
      }
      sizes[0] = samples;
    }
    result[name] = at::empty(sizes, at::TensorOptions().device(at::kMeta).dtype(tensor.dtype()));
  }
  return result;
}

int64_t Source::samples() const {
  const auto first = std::find_if(example_.begin(), example_.end(),
                                  [&](const auto& item) { return is_batched(item.first); });
  return first->second.dim() > 0 ? first->second.size(0) : 1;
}

const Captured& Source::at(int64_t samples, bool evaluation) const {
  auto& kept = evaluation ? evaluation_ : training_;
  if (!kept.captured || kept.samples != samples) {
    const auto batch = resized(samples);
    auto captured = evaluation ? capture_evaluation(*module_, batch, forward_)
                               : capture(*module_, batch, forward_);
    for (auto& input : captured.graph.inputs) {
      input.batched = input.kind != graph::Input::Kind::data || is_batched(input.name);
    }
    kept.captured = std::make_shared<Captured>(std::move(captured));
    kept.samples = samples;
  }
  return *kept.captured;
}

struct Strategy::Impl {
  std::shared_ptr<lua::StrategyScript> script;
  std::optional<methods::Strategy> fixed;  // neither this nor a script: "auto"
  // What it came to the last time that a plan was made of it, and what for.
  mutable methods::Strategy made;
  mutable methods::Request request;
};

struct Resolver {
  static bool is_auto(const Strategy& strategy) {
    return !strategy.impl_->script && !strategy.impl_->fixed;
  }
  static bool is_function(const Strategy& strategy) {
    return strategy.impl_->script && strategy.impl_->script->is_function();
  }
  static methods::Strategy resolve(const Strategy& strategy, const nlohmann::json& job,
                                   const graph::Graph& graph, lua::Planner* planner) {
    const auto& impl = *strategy.impl_;
    return impl.script ? impl.script->resolve(job, graph, planner) : *impl.fixed;
  }
  static void keep(const Strategy& strategy, const methods::Strategy& made,
                   const methods::Request& request) {
    strategy.impl_->made = made;
    strategy.impl_->request = request;
  }
  static const methods::Strategy* made(const Planned& planned, methods::Request& request) {
    const auto& impl = *planned.strategy.impl_;
    request = impl.request;
    return impl.made.methods.empty() ? nullptr : &impl.made;
  }
  static void check(const Planned& planned, const std::function<void(const plan::Plan&)>& f) {
    const auto& impl = *planned.strategy.impl_;
    auto request = impl.request;
    request.graph = &planned.captured.graph;
    methods::check_methods(impl.made, request, planned.plan, f);
  }
};

Strategy::Strategy() : impl_(std::make_shared<Impl>()) {}

namespace {

lua::Options lua_options(const ScriptOptions& options) {
  lua::Options script;
  script.limits = {options.seconds, options.megabytes};
  script.seed = options.seed;
  script.runtime_folder = options.runtime_folder;
  return script;
}

// A strategy that says what the job is must be used with that job.
void check_set(const methods::Strategy& strategy, const Job& job) {
  for (const auto& assignment : strategy.set) {
    auto other = job;
    other.set(assignment);
    if (other == job) continue;
    fail("strategy", "the job must have what the strategy sets, {}, but it has another value",
         assignment);
  }
}

// What a method could not carry out on this device or model it says once.
void tell_left_out(const plan::Plan& plan) {
  for (const auto& decision : plan.decisions) {
    if (decision.sentence.starts_with("left out: ")) {
      log::warn("{}: {}", decision.by, decision.sentence);
    }
  }
}

}  // namespace

Strategy Strategy::file(const std::string& path, const ScriptOptions& options) {
  auto impl = std::make_shared<Impl>();
  impl->script = std::make_shared<lua::StrategyScript>(path, lua_options(options));
  Strategy strategy;
  strategy.impl_ = std::move(impl);
  return strategy;
}

Strategy Strategy::dialect(const job::Dialect& dialect, const ScriptOptions& options) {
  auto impl = std::make_shared<Impl>();
  impl->script = std::make_shared<lua::StrategyScript>(dialect, lua_options(options));
  Strategy strategy;
  strategy.impl_ = std::move(impl);
  return strategy;
}

Strategy Strategy::data(const std::string& json) {
  const auto value = nlohmann::json::parse(json, nullptr, false);
  if (value.is_discarded())
    fail("strategy", "a strategy as data must be JSON, but got {}", json.substr(0, 80));
  auto impl = std::make_shared<Impl>();
  impl->fixed = methods::from_json(value, "the strategy");
  Strategy strategy;
  strategy.impl_ = std::move(impl);
  return strategy;
}

Strategy Strategy::plan(plan::Plan plan) {
  auto impl = std::make_shared<Impl>();
  impl->fixed.emplace().plan = std::move(plan);
  Strategy strategy;
  strategy.impl_ = std::move(impl);
  return strategy;
}

bool Strategy::observes(const std::string& event) const {
  return impl_->script && impl_->script->observes(event);
}

double Strategy::ask(const std::string& event, int64_t step) const {
  if (impl_->script) return impl_->script->ask(event, step);
  fail("strategy", "the plan needs a strategy script with an event {}, but there is none", event);
}

void Strategy::notify(const std::string& event, const std::string& report) const {
  if (impl_->script) impl_->script->notify(event, nlohmann::json::parse(report));
}

Planned make_plan(std::shared_ptr<const Source> source, const Strategy& given, const Job& job,
                  World world) {
  train::prepare_device(job);
  source->check(job);
  auto strategy = given;
  if (Resolver::is_auto(given) && !job.dialect.name.empty()) {
    strategy = Strategy::dialect(job.dialect, {.runtime_folder = world.runtime_folder});
  }
  methods::Request request;
  request.global_batch = job.batch.global;
  request.micro_batch = job.batch.micro;
  request.round = job.batch.round;
  request.frozen = job.model.frozen;
  request.world = world.size > 0 ? world.size : std::max<int64_t>(1, job.cluster.ranks);
  request.world_given = world.size > 0 || job.cluster.ranks > 0;
  request.eight_bits = train::multiplies_eight_bits(job, world.foretold, world.runtime_folder);
  const auto cluster = [job, folder = world.runtime_folder](int64_t ranks) {
    return train::cluster_of(job, ranks, folder);
  };
  request.device_bytes = [cluster](int64_t ranks) { return cluster(ranks).least_memory(); };
  std::unique_ptr<train::AutoPlanner> planner;
  if (Resolver::is_auto(strategy) || Resolver::is_function(strategy)) {
    planner = std::make_unique<train::AutoPlanner>(source, job, request.world, world.runtime_folder,
                                                   request.eight_bits);
  }
  if (Resolver::is_auto(strategy)) {
    auto found = std::make_shared<search::Found>(planner->find(nlohmann::json::object()));
    const auto& captured =
        source->at(methods::graph_batch(found->plan, request), job.train.forward_only);
    auto plan = found->plan;
    return {std::move(source),  captured,         std::move(plan), job,
            /*predicted=*/true, std::move(found), strategy};
  }
  auto about = train::describe(job);
  if (request.world_given) about["cluster"]["ranks"] = request.world;
  const auto known = std::make_shared<train::Known>(job, request.world);
  // The graph has the shapes of one global microbatch, which follows from the plan, which may look
  // at the graph: plan for a first guess, and again where that was wrong.
  auto samples = job.batch.micro > 0 ? std::min(job.batch.global, job.batch.micro * request.world)
                                     : job.batch.global;
  for (int tries = 0;; ++tries) {
    const auto resolved = Resolver::resolve(
        strategy, about, source->at(samples, job.train.forward_only).graph, planner.get());
    // Behind that: a planner captures too.
    const auto& captured = source->at(samples, job.train.forward_only);
    request.graph = &captured.graph;
    request.samples = samples;
    train::ask_devices(request, job, cluster, {known, &known->traces()});
    auto plan = methods::make_plan(resolved, request);
    const auto wanted = methods::graph_batch(plan, request);
    if (wanted == samples) {
      check_set(resolved, job);
      for (const auto& warning : resolved.warnings) log::warn("{}", warning);
      tell_left_out(plan);
      methods::check_methods(resolved, request, plan, [&](plan::Plan made) {
        made.microbatches = plan.microbatches;
        plan::verify(made, captured.graph);
      });
      Resolver::keep(strategy, resolved, request);
      if (request.world_given && plan.mesh.size() != request.world) {
        fail("plan", "the plan's mesh must have the {} ranks of this run, but it has {}",
             request.world, plan.mesh.size());
      }
      auto fitted = train::with_fitted_batch(job, plan);
      if (fitted.batch.global != job.batch.global) {
        log::warn(
            "batch.global = {} does not divide over {} microbatch{} and the data ranks: a step has "
            "{} samples (batch.round)",
            job.batch.global, plan.microbatches, plan.microbatches == 1 ? "" : "es",
            fitted.batch.global);
      }
      return {std::move(source),   captured, std::move(plan), std::move(fitted),
              /*predicted=*/false, nullptr,  strategy};
    }
    if (tries == 2) {
      fail("plan",
           "the strategy asks for {} samples a microbatch when it sees {}, and does not settle",
           wanted, samples);
    }
    samples = wanted;
  }
}

namespace train {

const methods::Strategy* methods_of(const Planned& planned, methods::Request& request) {
  return Resolver::made(planned, request);
}

void at_methods(const Planned& planned, const std::function<void(plan::Plan)>& f) {
  Resolver::check(planned, [&](plan::Plan plan) {
    plan.microbatches = planned.plan.microbatches;
    f(std::move(plan));
  });
}

}  // namespace train
}  // namespace perigee
