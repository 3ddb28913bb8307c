// From a strategy to the plan: methods in order, then the settings that the request fixes.
#include <algorithm>
#include <cctype>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/fail.h"
#include "methods/method.h"
#include "methods/order.h"
#include "methods/placed.h"
#include "plan/pipeline.h"
#include "plan/plan.h"
#include "plan/rewrites.h"
#include "schedule/interleave.h"
#include "schedule/of_plan.h"

namespace perigee::methods {

std::shared_ptr<const Method> parallel_mode();
std::shared_ptr<const Method> module_replace();

namespace {

// Returns the number of ranks that a step's samples are sharded over.
int64_t data_ranks(const plan::Plan& plan) { return copies_of(plan) * plan::batch_ranks(plan); }

std::string batch_sentence(const plan::Plan& plan, int64_t global) {
  const auto data = data_ranks(plan);
  const auto start = fmt::format("a step of {} samples runs as {} microbatch{} of", global,
                                 plan.microbatches, plan.microbatches == 1 ? "" : "es");
  if (plan.mesh.is_ragged()) {
    return fmt::format("{} {}, which each stage splits over its ranks of {}", start,
                       global / plan.microbatches, plan.batch_axes.text());
  }
  return fmt::format("{} {} on each of {} data rank{}", start, global / plan.microbatches / data,
                     data, data == 1 ? "" : "s");
}

int64_t step_samples(const plan::Plan& plan, const PlanRequest& request) {
  return request.round ? fitted_batch(plan, request.global_batch, request.micro_batch)
                       : request.global_batch;
}

}  // namespace

const mesh::Mesh& mesh_of_ranks(const plan::Plan& plan, const PlanRequest& request) {
  return request.submeshes ? *request.submeshes : plan.mesh;
}

std::vector<mesh::Axis> idle_axes(const plan::Plan& plan) {
  std::vector<mesh::Axis> idle;
  const auto batch_axes = plan.batch_axes;
  const auto copy_axes = plan.copy_axes;
  for (size_t a = 0; a < plan.mesh.axes.size(); ++a) {
    const auto& axis = plan.mesh.axes[a];
    const bool splits_batch = std::find(batch_axes.begin(), batch_axes.end(), axis.name) !=
                              batch_axes.end();
    const bool used = std::any_of(plan.placements.begin(), plan.placements.end(),
                                  [&](const auto& pin) { return pin.second[a].is_shard(); }) ||
                      std::any_of(plan.units.begin(), plan.units.end(), [&](const auto& unit) {
                        const auto axes = unit.axes;
                        return std::find(axes.begin(), axes.end(), axis.name) != axes.end();
                      });
    const bool staged = axis.name == plan.pipeline.axis;
    const bool copies = std::find(copy_axes.begin(), copy_axes.end(), axis.name) != copy_axes.end();
    if (axis.size == 1 || splits_batch || used || staged || copies) continue;
    idle.push_back(axis);
  }
  return idle;
}

std::string idle_sentence(const mesh::Axis& axis) {
  return fmt::format("no method shards over axis {}: its {} ranks repeat the same work", axis.name,
                     axis.size);
}

namespace {

// Returns the plan that the first `count` methods make.
plan::Plan apply_methods(const StrategySpec& strategy, const std::vector<MethodUse>& uses,
                         size_t count, PlanRequest request) {
  plan::Plan plan;
  for (const auto& [op, rule] : strategy.rules) plan.rules.insert_or_assign(op, rule);
  plan.graph_hash = graph::structural_hash(*request.graph);
  plan.microbatches = 0;
  if (strategy.origin) plan.decisions.push_back(*strategy.origin);
  std::vector<std::string> applied;
  for (size_t i = 0; i < count; ++i) applied.emplace_back(uses[i].method->name());
  request.applied = &applied;
  if (count == 0 || uses.front().method->name() != "parallel_mode") {
    parallel_mode()->apply(plan, {}, request);
  }
  graph::Graph adapted;
  auto& submeshes = request.submeshes;
  for (size_t i = 0; i < count; ++i) {
    const auto& [method, config] = uses[i];
    if (submeshes && sees_submeshes(*method)) plan.mesh = *submeshes;
    at_place(config, [&] { method->apply(plan, config, request); });
    if (plan.adapters && !graph::has_adapters(*request.graph, *plan.adapters)) {
      adapted = graph::adapt(*request.graph, *plan.adapters);
      request.graph = &adapted;
    }
    if (!plan.mesh.is_ragged()) continue;
    // Most methods see all submeshes as if they had the largest sizes.
    submeshes = plan.mesh;
    plan.mesh.stages.clear();
    plan.mesh.order.clear();
  }
  if (submeshes) plan.mesh = *submeshes;
  for (const auto& axis : idle_axes(plan)) {
    plan.decisions.push_back({"parallel_mode", idle_sentence(axis)});
  }
  return plan;
}

// Returns an op or a value that the plan names and its rewrites replace, or "".
std::string named_and_replaced(const plan::Plan& plan, const graph::Graph& graph) {
  const auto rewritten = plan::apply(plan.rewrites, graph);
  std::set<std::string_view> ops;
  for (const auto& node : rewritten.nodes) ops.insert(node.op);
  const auto& recompute = plan.recompute;
  std::vector<const std::vector<std::string>*> lists = {&recompute.keep, &recompute.only};
  for (const auto& [scope, kept] : recompute.keep_in) lists.push_back(&kept);
  for (const auto* list : lists) {
    for (const auto& op : *list) {
      if (!ops.contains(op)) return op;
    }
  }
  std::set<std::string_view> before;
  for (const auto& node : graph.nodes) before.insert(node.op);
  const auto& precision = plan.precision;
  for (const auto* list : {&precision.allow, &precision.deny, &precision.promote}) {
    for (const auto& op : *list) {
      if (before.contains(op) && !ops.contains(op)) return op;
    }
  }
  const auto names = graph::value_names(graph);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const bool gone = graph.values[v].producer >= 0 && rewritten.values[v].producer < 0;
    if (gone && plan.placements.contains(names[v])) return names[v];
  }
  return "";
}

// Returns the plan of all methods, with module_replace where none of them is it and the strategy names
// no op or value that it would replace.
plan::Plan apply_all(const StrategySpec& strategy, const PlanRequest& request) {
  const auto implied = module_replace();
  const auto is_given = [&](const MethodUse& use) { return use.method->name() == implied->name(); };
  if (std::ranges::none_of(strategy.methods, is_given)) {
    auto uses = strategy.methods;
    uses.push_back({implied, {.implied = true}});
    uses = in_order(std::move(uses));
    try {
      auto plan = apply_methods(strategy, uses, uses.size(), request);
      const bool adapts = plan.adapters && !graph::has_adapters(*request.graph, *plan.adapters);
      if (plan.rewrites.empty()) return plan;
      const auto named = named_and_replaced(
          plan, adapts ? graph::adapt(*request.graph, *plan.adapters) : *request.graph);
      if (named.empty()) return plan;
      plan.rewrites.clear();
      std::erase_if(plan.decisions, [&](const auto& d) { return d.by == implied->name(); });
      plan.decisions.push_back(
          {std::string(implied->name()),
           fmt::format("layers stay as the model writes them, since the strategy names {}",
                       named)});
      return plan;
    } catch (const Error&) {
      // The strategy names an op that would be gone, or has an error without the method, too.
    }
  }
  const auto uses = in_order(strategy.methods);
  return apply_methods(strategy, uses, uses.size(), request);
}

// Returns the microbatches where neither the strategy nor the job asks for a number: as many as the
// pipeline has stages if the batch divides, else 1.
int64_t default_microbatches(const plan::Plan& plan, int64_t global) {
  const auto stages = plan.mesh.size_of(plan.pipeline.axis);
  return global % (stages * data_ranks(plan)) == 0 ? stages : 1;
}

// Fixes the plan's microbatches. Throws Error where a step's samples do not divide over them.
void fit_microbatches(plan::Plan& plan, const PlanRequest& request) {
  const auto data = data_ranks(plan);
  if (request.micro_batch > 0) {
    if (request.global_batch % (request.micro_batch * data) != 0 && !request.round) {
      fail("plan",
           "batch.global must be a multiple of batch.micro x data ranks, but got {} for {} x {}",
           request.global_batch, request.micro_batch, data);
    }
    const auto fitting = microbatches_of(plan, request.global_batch, request.micro_batch);
    if (plan.microbatches != 0 && plan.microbatches != fitting) {
      fail("plan",
           "the strategy asks for {} microbatches, but batch.micro = {} makes {}: remove one of "
           "them",
           plan.microbatches, request.micro_batch, fitting);
    }
    plan.microbatches = fitting;
  }
  if (plan.microbatches == 0) {
    plan.microbatches = default_microbatches(plan, request.global_batch);
  }
  const auto global = step_samples(plan, request);
  if (global % (plan.microbatches * data) != 0) {
    fail("plan", "batch.global must divide over microbatches x data ranks, but got {} for {} x {}",
         global, plan.microbatches, data);
  }
}

}  // namespace

void fit_batch(plan::Plan& plan, const PlanRequest& request) {
  fit_microbatches(plan, request);
  if (plan.pipeline.cuts() || plan.overlap.experts) check_interleaving(plan, schedule_of(plan));
}

plan::Plan make_plan(const StrategySpec& strategy, const PlanRequest& request) {
  if (strategy.plan) {
    auto plan = *strategy.plan;
    for (const auto& [op, rule] : strategy.rules) plan.rules.insert_or_assign(op, rule);
    const auto micro = request.micro_batch;
    if (micro > 0 && microbatches_of(plan, request.global_batch, micro) != plan.microbatches) {
      fail("plan",
           "the plan's steps have {} microbatch{}, but batch.micro = {} makes {}: remove it, or "
           "make a new plan",
           plan.microbatches, plan.microbatches == 1 ? "" : "es", micro,
           microbatches_of(plan, request.global_batch, micro));
    }
    fit_microbatches(plan, request);
    return plan;
  }
  plan::Plan plan;
  check_methods(strategy, request, apply_all(strategy, request), [&](plan::Plan made) {
    fit_batch(made, request);
    plan = std::move(made);
  });
  plan.decisions.push_back({"batch", batch_sentence(plan, step_samples(plan, request))});
  return plan;
}

namespace {

// Returns where the text has the word, not within another one; npos: nowhere.
size_t find_word(std::string_view text, std::string_view word) {
  const auto continues = [&](size_t at) {
    return at < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[at])) != 0 || text[at] == '_');
  };
  for (auto at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    if ((at == 0 || !continues(at - 1)) && !continues(at + word.size())) return at;
  }
  return std::string_view::npos;
}

}  // namespace

std::string place_of(const Config& config, std::string_view error) {
  if (error.starts_with('[')) error.remove_prefix(std::min(error.find(']'), error.size()));
  std::string place = config.place;
  const auto find_first = [&](auto find) {
    auto first = std::string_view::npos;
    for (const auto& [word, there] : config.places) {
      const size_t at = find(word);
      if (at >= first) continue;
      first = at;
      place = there;
    }
    return first != std::string_view::npos;
  };
  const auto quoted = [&](const std::string& word) { return error.find('"' + word + '"'); };
  if (!find_first(quoted)) find_first([&](const auto& word) { return find_word(error, word); });
  return place;
}

PlacedError::PlacedError(const std::string& place, const Error& error)
    : Error(error.status(), "strategy", place + error.what()) {}

void check_methods(const StrategySpec& strategy, const PlanRequest& request, const plan::Plan& plan,
                   const std::function<void(const plan::Plan&)>& check) {
  const auto fails = [&](const plan::Plan& other) {
    try {
      check(other);
    } catch (const Error&) {
      return true;
    }
    return false;
  };
  try {
    check(plan);
  } catch (const PlacedError&) {
    throw;
  } catch (const Error& error) {
    if (strategy.plan) throw;
    const auto uses = in_order(strategy.methods);
    for (size_t count = uses.size(); count > 0; --count) {
      if (fails(apply_methods(strategy, uses, count - 1, request))) continue;
      const auto place = place_of(uses[count - 1].config, error.what());
      if (place.empty()) throw;
      throw PlacedError(place, error);
    }
    throw;
  }
}

int64_t microbatches_of(const plan::Plan& plan, int64_t global, int64_t micro) {
  return std::max<int64_t>(1, global / (micro * data_ranks(plan)));
}

int64_t fitted_batch(const plan::Plan& plan, int64_t global, int64_t micro) {
  const auto block = (micro > 0 ? micro : plan.microbatches) * data_ranks(plan);
  return std::max<int64_t>(1, global / block) * block;
}

int64_t graph_batch(const plan::Plan& plan, const PlanRequest& request) {
  return step_samples(plan, request) / plan.microbatches / copies_of(plan);
}

}  // namespace perigee::methods
