#include "plan/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <regex>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/fail.h"
#include "plan/copies.h"
#include "plan/pipeline.h"
#include "plan/rewrites.h"
#include "plan/units.h"

namespace perigee::plan {
namespace {

// The first names of a long list, for messages.
std::string some(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < 3; ++i) text += (i ? ", " : "") + names[i];
  return names.size() > 3 ? text + ", ..." : text;
}

// Describes how a graph differs from the plan's: names that the graph lacks.
std::string missing_names(const Plan& plan, const std::map<std::string, graph::ValueId>& values) {
  std::vector<std::string> missing;
  for (const auto& [name, placements] : plan.placements) {
    if (!values.contains(name)) missing.push_back(name);
  }
  return missing.empty() ? "" : fmt::format("; it names {}, which the graph lacks", some(missing));
}

void verify_placements(const Plan& plan, const std::string& name,
                       const mesh::Placements& placements, const graph::TensorType& type) {
  if (placements.size() != plan.mesh.axes.size()) {
    fail("plan", "{} needs a placement for each of {} mesh axes, but got \"{}\"", name,
         plan.mesh.axes.size(), mesh::to_string(placements));
  }
  for (size_t a = 0; a < placements.size(); ++a) {
    const auto& p = placements[a];
    if (p.is_shard() && (p.dim < 0 || p.dim >= static_cast<int>(type.shape.size()))) {
      fail("plan", "{} has {} dims, but is placed as {} on axis {}", name, type.shape.size(),
           mesh::to_string(p), plan.mesh.axes[a].name);
    }
  }
  if (!mesh::runs_divide(type.shape, placements, plan.mesh)) {
    fail("plan", "{} is placed as {}, which does not cut its runs into equal parts", name,
         mesh::to_string(placements));
  }
}

// A stage that keeps the results of some microbatches has two sets of sections, which share only
// values that outlive a microbatch.
void verify_kept_microbatches(const Plan& plan) {
  const auto kept = plan.recompute.kept_microbatches;
  if (kept < 0) fail("plan", "recompute.kept_microbatches is at least 0, but got {}", kept);
  if (kept == 0) return;
  if (!plan.pipeline.cuts()) {
    fail("plan",
         "kept_microbatches requires a pipeline, but is {} and the plan has one stage: leave it "
         "out, or use pipeline_parallel",
         kept);
  }
  if (plan.recompute.regions.empty()) {
    fail("plan",
         "recompute.kept_microbatches requires regions that are recomputed, but there are none");
  }
  if (!plan.offload.activations.empty()) {
    fail("plan",
         "the results that {} kept microbatches save stay on the device, but offload moves the "
         "activations of {} to the host: use one of the two",
         kept, plan.offload.activations.front());
  }
  if (plan.overlap.experts) {
    fail("plan",
         "kept_microbatches is {}, but with overlap's experts a microbatch begins before the "
         "preceding one ends: leave kept_microbatches out, or experts",
         kept);
  }
}

void verify_kept_weights(const Plan& plan) {
  if (!plan.precision.keep_weights) return;
  if (!plan.precision.dtype || plan.precision.parameters == Precision::Parameters::low) {
    fail(
        "plan",
        "precision.keep_weights keeps float32 weights in a low precision beside them, but the plan "
        "has {}: leave it out",
        plan.precision.dtype ? "no float32 weights" : "no low precision");
  }
  for (const auto& unit : plan.units) {
    const bool masters = plan.precision.parameters == Precision::Parameters::masters;
    if (unit.level < 3 && !masters) continue;
    fail("plan",
         "precision.keep_weights keeps low weights that a rank has whole beside float32 ones, but "
         "those of unit \"{}\" are {}: leave it out{}",
         unit.name,
         masters ? "gathered in a low precision (half), once a step" : "stored in parts (fsdp)",
         masters ? "" : ", or use zero1 or zero2");
  }
}

void verify_deferred(const Plan& plan, const graph::Graph& graph) {
  const auto& overlap = plan.overlap;
  if (overlap.deferred_limit < 0) {
    fail("plan", "overlap.deferred_limit is at least 0, but got {}", overlap.deferred_limit);
  }
  if (overlap.deferred.empty()) return;
  std::vector<std::string> known;
  for (const auto& input : graph.inputs) {
    if (input.kind == graph::Input::Kind::parameter) known.push_back(input.name);
  }
  const auto is_deferred = [&](const std::string& name) {
    return std::find(overlap.deferred.begin(), overlap.deferred.end(), name) !=
           overlap.deferred.end();
  };
  for (const auto& name : overlap.deferred) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    fail("plan", "overlap.deferred names parameters of the graph, but got \"{}\"{}", name,
         did_you_mean(name, known));
  }
  if (!plan.pipeline.cuts()) {
    fail("plan",
         "deferring the weight gradient of {} requires a pipeline, but the plan has one stage: "
         "leave deferred_head out, or use pipeline_parallel",
         overlap.deferred.front());
  }
  if (!plan.offload.activations.empty()) {
    fail("plan",
         "the operands of the deferred gradient of {} stay on the device, but offload moves the "
         "activations of {} to the host: use one of the two",
         overlap.deferred.front(), plan.offload.activations.front());
  }
  // Sharded gradients are reduced in every microbatch, all of a unit together.
  for (const auto& unit : plan.units) {
    const auto count = std::count_if(unit.parameters.begin(), unit.parameters.end(), is_deferred);
    if (unit.level < 2 || count == 0 || count == std::ssize(unit.parameters)) continue;
    fail("plan",
         "a unit of level {} is reduced once all of its gradients are computed, but some of unit "
         "{} are deferred: give these a unit of their own",
         unit.level, unit.name);
  }
}

void verify_recompute(const Plan& plan, const graph::Graph& graph) {
  const auto& recompute = plan.recompute;
  std::vector<std::string> scopes, ops, firsts;
  for (const auto& scope : graph.scopes) scopes.push_back(scope.path);
  for (const auto& node : graph.nodes) ops.push_back(node.op);
  const bool keeps = !recompute.keep.empty() || !recompute.keep_in.empty();
  if (!plan.rewrites.empty() && (keeps || !recompute.only.empty())) {
    for (const auto& node : apply(plan.rewrites, graph).nodes) ops.push_back(node.op);
  }
  const auto check = [](const std::string& name, const std::vector<std::string>& known,
                        const char* rule) {
    if (std::find(known.begin(), known.end(), name) != known.end()) return;
    fail("plan", "recompute {}, but got \"{}\"{}", rule, name, did_you_mean(name, known));
  };
  std::vector<std::string> seen;
  for (const auto& region : recompute.regions) {
    if (!region.empty()) firsts.push_back(region.front());
    for (const auto& scope : region) {
      check(scope, scopes, "names scopes of the graph");
      for (const auto& other : seen) {
        if (!graph::contains_scope(scope, other) && !graph::contains_scope(other, scope)) continue;
        fail("plan", "recompute names a scope once, but got \"{}\" and \"{}\"", other, scope);
      }
      seen.push_back(scope);
    }
  }
  for (const auto& op : recompute.only) check(op, ops, "names ops of the graph");
  for (const auto& op : recompute.keep) check(op, ops, "names ops of the graph");
  for (const auto& [scope, kept] : recompute.keep_in) {
    check(scope, firsts, "names in keep_in the first scope of a region");
    for (const auto& op : kept) check(op, ops, "names ops of the graph");
  }
  if (!recompute.only.empty() && keeps) {
    fail("plan", "recompute has ops to recompute or ops to keep, but got both");
  }
}

void verify_rewrites(const Plan& plan, const graph::Graph& graph) {
  apply(plan.rewrites, {});
  std::vector<std::string> scopes;
  for (const auto& scope : graph.scopes) scopes.push_back(scope.path);
  for (const auto& rewrite : plan.rewrites) {
    for (const auto& scope : rewrite.within) {
      if (std::find(scopes.begin(), scopes.end(), scope) != scopes.end()) continue;
      fail("plan", "within of the rewrite {} names scopes of the graph, but got \"{}\"{}",
           rewrite.name, scope, did_you_mean(scope, scopes));
    }
  }
}

void verify_offload(const Plan& plan, const graph::Graph& graph) {
  const auto& offload = plan.offload;
  std::vector<std::string> scopes;
  for (const auto& scope : graph.scopes) scopes.push_back(scope.path);
  for (const auto& scope : offload.activations) {
    if (std::find(scopes.begin(), scopes.end(), scope) != scopes.end()) continue;
    fail("plan", "offload names scopes of the graph, but got \"{}\"{}", scope,
         did_you_mean(scope, scopes));
  }
  if (offload.prefetch < 0) {
    fail("plan", "offload.prefetch is at least 0, but got {}", offload.prefetch);
  }
  const bool parts = std::any_of(plan.units.begin(), plan.units.end(),
                                 [](const Unit& unit) { return unit.level == 3; });
  if (offload.parameters && !parts) {
    fail("plan", "offload takes parameters of units of level 3 (fsdp), but the plan has none");
  }
}

void verify_units(const Plan& plan, const graph::Graph& graph) {
  std::vector<std::string> axes, known;
  for (const auto& a : plan.mesh.axes) axes.push_back(a.name);
  for (const auto& input : graph.inputs) {
    if (input.kind == graph::Input::Kind::parameter) known.push_back(input.name);
  }
  std::map<std::string, std::string> unit_of;
  // The parts of a stage end their microbatches one by one, in any order.
  const bool parts = plan.pipeline.cuts() && plan.pipeline.chunks > 1 && !plan.units.empty();
  const auto users = parts ? first_users(graph, plan.pipeline) : std::vector<int>();
  for (const auto& unit : plan.units) {
    int part = kEveryPart;
    if (unit.level < 1 || unit.level > 3) {
      fail("plan", "a unit has level 1, 2 or 3, but {} has {}", unit.name, unit.level);
    }
    if (const auto why = why_no_one_copy(plan, unit.level); unit.one_copy && !why.empty()) {
      fail("plan", "ranks cannot hold one copy of the parameters of unit {}: {}", unit.name, why);
    }
    const auto& cut = unit.axes;
    for (const auto& axis : cut) {
      if (plan.mesh.find(axis) < 0) {
        fail("plan", "a unit is cut over axes of the mesh, but {} over \"{}\"{}", unit.name, axis,
             did_you_mean(axis, axes));
      }
      if (plan.pipeline.cuts() && axis == plan.pipeline.axis) {
        fail("plan", "a unit is cut over ranks of one stage, but {} over {}, which has the stages",
             unit.name, axis);
      }
    }
    for (const auto& name : unit.parameters) {
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        fail("plan", "a unit holds parameters of the graph, but {} holds \"{}\"{}", unit.name, name,
             did_you_mean(name, known));
      }
      const auto [at, added] = unit_of.emplace(name, unit.name);
      if (!added) {
        fail("plan", "a parameter is in at most one unit, but {} is in {} and {}", name, at->second,
             unit.name);
      }
      if (parts) {
        const int own = users[graph.find_input(name)->value.index];
        if (part != kEveryPart && own != kEveryPart && own != part) {
          fail(
              "plan",
              "a unit's parameters belong to one part of the pipeline, but {} of {} to part {} and "
              "others to part {}: give each part units of its own",
              name, unit.name, own, part);
        }
        if (own != kEveryPart) part = own;
      }
      const auto placed = plan.placements.find(name);
      if (placed == plan.placements.end()) continue;
      for (const auto& axis : cut) {
        const auto& p = placed->second[plan.mesh.find(axis)];
        if (p.is_replicate()) continue;
        fail("plan",
             "a unit shards parameters that are replicated on its axes, but {} of {} is placed as "
             "{} on axis {}",
             name, unit.name, mesh::to_string(p), axis);
      }
    }
  }
}

void verify_pipeline(const Plan& plan, const graph::Graph& graph) {
  const auto& pipeline = plan.pipeline;
  if (!pipeline.cuts()) return;
  std::vector<std::string> axes;
  for (const auto& a : plan.mesh.axes) axes.push_back(a.name);
  const int axis = plan.mesh.find(pipeline.axis);
  if (axis < 0) {
    fail("plan", "a pipeline runs over an axis of the mesh, but over \"{}\"{}", pipeline.axis,
         did_you_mean(pipeline.axis, axes));
  }
  if (plan.batch_axes.contains(pipeline.axis)) {
    fail("plan", "nothing is sharded over a pipeline's axis, but the batch is over {}",
         pipeline.axis);
  }
  for (const auto& [name, placements] : plan.placements) {
    const auto& p = placements[axis];
    if (p.is_replicate() || p.is_open()) continue;
    fail("plan", "nothing is sharded over a pipeline's axis, but {} is placed as {} on {}", name,
         mesh::to_string(p), pipeline.axis);
  }
  if (pipeline.chunks < 1) {
    fail("plan", "a stage has at least one chunk, but the pipeline has {}", pipeline.chunks);
  }
  constexpr std::array kSent{graph::DType::float16, graph::DType::bfloat16, graph::DType::float32,
                             graph::DType::float64};
  if (pipeline.dtype && std::ranges::find(kSent, *pipeline.dtype) == kSent.end()) {
    fail("plan", "pipeline.dtype is float16, bfloat16, float32 or float64, but got {}",
         graph::name_of(*pipeline.dtype));
  }
  const auto parts = plan.mesh.axes[axis].size * pipeline.chunks;
  if (std::ssize(pipeline.starts) + 1 != parts) {
    fail("plan", "a pipeline of {} stages with {} chunks has {} starts, but got {}",
         plan.mesh.axes[axis].size, pipeline.chunks, parts - 1, pipeline.starts.size());
  }
  parts_of(graph, pipeline);
}

// Returns whether the axes have several ranks.
bool cuts(const mesh::Mesh& mesh, const mesh::AxisSet& axes) {
  return std::any_of(axes.begin(), axes.end(),
                     [&](const auto& axis) { return mesh.size_of(axis) > 1; });
}

void verify_forbidden(const Plan& plan, const graph::Graph& graph) {
  const auto known = forbiddable();
  for (const auto& name : plan.forbidden) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    fail("plan", "forbidden has {}, but got \"{}\"{}", fmt::join(known, ", "), name,
         did_you_mean(name, known));
  }
  if (std::count(plan.forbidden.begin(), plan.forbidden.end(), "nd_shardings")) {
    for (const auto& [name, placements] : plan.placements) {
      int axes = 0;
      for (size_t a = 0; a < placements.size(); ++a) {
        axes += placements[a].is_shard() && plan.mesh.axes[a].size > 1;
      }
      if (axes < 2) continue;
      fail("plan",
           "no tensor may be split over several axes (nd_shardings is forbidden), but {} is placed "
           "as \"{}\"",
           name, mesh::to_string(placements));
    }
  }
  if (!std::count(plan.forbidden.begin(), plan.forbidden.end(), "replicated_parameters")) return;
  const auto stages = plan.pipeline.cuts() ? plan.mesh.size_of(plan.pipeline.axis) : 1;
  if (plan.mesh.size() == stages) return;
  for (const auto& input : graph.inputs) {
    if (input.kind != graph::Input::Kind::parameter) continue;
    bool cut = false;
    if (const auto placed = plan.placements.find(input.name); placed != plan.placements.end()) {
      for (size_t a = 0; a < placed->second.size(); ++a) {
        cut = cut || (placed->second[a].is_shard() && plan.mesh.axes[a].size > 1);
      }
    }
    for (const auto& unit : plan.units) {
      const auto& names = unit.parameters;
      cut = cut || (unit.level == 3 && cuts(plan.mesh, unit.axes) &&
                    std::find(names.begin(), names.end(), input.name) != names.end());
    }
    if (cut) continue;
    fail("plan",
         "no parameter may be replicated on several ranks (replicated_parameters is forbidden), "
         "but {} is: use fsdp over an axis of several ranks",
         input.name);
  }
}

void verify_products(const Plan& plan) {
  static const std::regex form(
      R"((float32|bfloat16) \[\d+, (\d+)\] x \[(\d+), (\d+)\](?: \+ \[(\d+)\])?)");
  for (const auto& [name, way] : plan.products) {
    std::smatch parts;
    const bool named = std::regex_match(name, parts, form) && parts[2] == parts[3] &&
                       (!parts[5].matched || parts[4] == parts[5]);
    if (named && (way == "blocks" || way == "library")) continue;
    fail("plan",
         "products has entries like \"float32 [64, 8] x [8, 32]\": \"blocks\" or \"library\", but "
         "got "
         "\"{}\": \"{}\"",
         name, way);
  }
}

}  // namespace

std::vector<std::string> forbiddable() {
  return {"all_gather", "all_to_all", "nd_shardings", "replicated_parameters",
          "replicated_products"};
}

std::string product_name(graph::DType factors, int64_t m, int64_t k, int64_t n, bool bias) {
  return fmt::format("{} [{}, {}] x [{}, {}]{}", graph::name_of(factors), m, k, k, n,
                     bias ? fmt::format(" + [{}]", n) : "");
}

void verify(const Plan& plan, const graph::Graph& graph) {
  mesh::verify(plan.mesh);
  verify_submeshes(plan);
  if (plan.microbatches < 1)
    fail("plan", "microbatches are at least 1, but got {}", plan.microbatches);
  for (const auto& axis : plan.batch_axes) {
    // An axis that the mesh lacks has one rank; only the default may do so without being a
    // typing error.
    if (plan.mesh.find(axis) < 0 && !Plan{}.batch_axes.contains(axis)) {
      std::vector<std::string> names;
      for (const auto& a : plan.mesh.axes) names.push_back(a.name);
      fail("plan", "batch_axes names axes of the mesh, but got \"{}\"{}", axis,
           did_you_mean(axis, names));
    }
  }
  verify_communication(plan);

  const auto names = graph::value_names(graph);
  std::map<std::string, graph::ValueId> values;
  for (size_t v = 0; v < names.size(); ++v) {
    values.emplace(names[v], graph::ValueId{static_cast<int32_t>(v)});
  }
  const auto graph_hash = graph::structural_hash(graph);
  if (plan.graph_hash != graph_hash) {
    fail("plan", "the plan is for the graph {}, but got the graph {} ({} nodes, {} inputs){}",
         plan.graph_hash, graph_hash, graph.nodes.size(), graph.inputs.size(),
         missing_names(plan, values));
  }
  if (plan.adapters && !graph::has_adapters(graph, *plan.adapters)) {
    fail("plan", "the graph of a plan with adapters has their parameters, but this one lacks some");
  }
  for (const auto& [name, placements] : plan.placements) {
    const auto found = values.find(name);
    if (found == values.end()) {
      fail("plan", "placements name values of the graph, but got \"{}\"{}", name,
           did_you_mean(name, names));
    }
    verify_placements(plan, name, placements, graph.type(found->second));
    if (graph.values[found->second.index].producer >= 0) continue;
    const bool is_data = graph.find_input(name)->kind == graph::Input::Kind::data;
    for (const auto& p : placements) {
      if (p.is_open() && !is_data) {
        fail("plan", "a parameter is placed on every axis, but {} as \"{}\"", name,
             mesh::to_string(placements));
      }
      if (p.is_partial() || p.run != 0 || (p.zigzag && !is_data)) {
        fail("plan", "an input is replicated or sharded in one piece{}, but {} is placed as \"{}\"",
             is_data ? " or zigzag" : "", name, mesh::to_string(placements));
      }
    }
  }
  verify_recompute(plan, graph);
  verify_kept_microbatches(plan);
  verify_offload(plan, graph);
  if (plan.recompute.budget_bytes < 0) {
    fail("plan", "recompute.budget_bytes is at least 0, but got {}", plan.recompute.budget_bytes);
  }
  if (plan.overlap.slices < 1) {
    fail("plan", "overlap.slices is at least 1, but got {}", plan.overlap.slices);
  }
  const auto check_kinds = [](const char* field, const std::vector<std::string>& kinds,
                              const std::vector<std::string>& all) {
    for (const auto& kind : kinds) {
      if (std::find(all.begin(), all.end(), kind) != all.end()) continue;
      fail("plan", "overlap.{} has {}, but got \"{}\"", field, fmt::join(all, ", "), kind);
    }
  };
  check_kinds("sliced", plan.overlap.sliced, Overlap::all_sliced());
  check_kinds("bulk", plan.overlap.bulk, Overlap::all_bulk());
  verify_units(plan, graph);
  verify_deferred(plan, graph);
  verify_kept_weights(plan);
  verify(plan.precision, graph);
  if (plan.fp8) verify(*plan.fp8, graph);
  verify_rewrites(plan, graph);
  verify_pipeline(plan, graph);
  if (plan.loss_chunks < 1) {
    fail("plan", "loss_chunks must be at least 1, but is {}", plan.loss_chunks);
  }
  verify_products(plan);
  verify_forbidden(plan, graph);
  verify_copies(plan, graph);
}

std::string hash(const Plan& plan) {
  const auto text = print(plan);
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace perigee::plan
