// overlap: what a step does at the same time.
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/match.h"
#include "cost/schedule.h"
#include "methods/head.h"
#include "methods/names.h"
#include "methods/texts.h"

namespace perigee::methods {
namespace {

// Patterns are of several models' names: only some of them match.
std::vector<std::string> scopes_of_any(const graph::Graph& graph,
                                       const std::vector<std::string>& patterns) {
  std::vector<std::string> found;
  for (const auto& scope : graph.scopes) {
    const bool typed = std::find(patterns.begin(), patterns.end(), scope.type) != patterns.end();
    if (typed || matches_any(patterns, scope.path)) found.push_back(scope.path);
  }
  if (found.empty()) {
    fail("overlap", "whole names scopes or module types of the model, but it has none like \"{}\"",
         fmt::join(patterns, "\", \""));
  }
  return found;
}

class Overlap : public Method {
 public:
  std::string_view name() const override { return "overlap"; }
  std::string_view doc() const override {
    return "What a step does at the same time, or in one pass, beside what it does so anyway "
           "(grad_comm overlaps the reduction of gradients, fsdp the gathering of units, offload "
           "its copies; the schedules zb1p, zb2p and zbv of pipeline_parallel delay weight "
           "gradients "
           "in an order of their own).";
  }
  const std::vector<Field>& fields() const override {
    static const std::vector<Field> fields = {
        {"accumulate", "boolean",
         "matrix products add to the gradient that they are a part of, with several microbatches; "
         "default false"},
        {"step", "boolean",
         "the optimizer steps a bucket of gradients as soon as it is reduced; without clip_norm "
         "and loss scale; default false"},
        {"receives", "boolean",
         "a pipeline's stage receives what its next section needs while one runs, into memory of "
         "its own; default false"},
        {"slices", "integer",
         "a matrix product whose sums are reduced over ranks, or whose rows are gathered "
         "(tensor_parallel, with and without sequence), is cut into so many pieces of rows, one of "
         "which moves while another is computed; default 1"},
        {"sliced", "list",
         "which of them: gathers, sums (of the forward pass), gradient_sums; default all"},
        {"whole", "list",
         "scopes (`blocks.*.attn.qkv`) or module types, some of which the model has, whose "
         "products "
         "are not cut; default none"},
        {"bulk", "list",
         "which collectives of tensor_parallel's backward pass go beside products that do not need "
         "them, as a whole: gathers (beside the product of the input's gradient), sums (beside "
         "that "
         "of the weight's); the others are waited for at once; default both"},
        {"deferred_head", "any",
         "the weight gradient of the vocabulary head, with pipeline_parallel: true has it computed "
         "behind all else of the last stage, a number that of so many microbatches at most, whose "
         "activations and gradients stay until then; default false"},
        {"head", "string",
         "deferred_head: the head's weight; default that of the largest product behind which "
         "there is only the loss"},
        {"weights", "boolean",
         "the gradients of weights are computed behind those of the inputs of a microbatch, and "
         "with "
         "pipeline_parallel where a stage would wait else, by any schedule that does not do so "
         "itself; default false"},
        {"experts", "boolean",
         "a microbatch's backward pass and the next one's forward pass run in turns: while one's "
         "rows go to their experts or back (expert_parallel), the other computes; with several "
         "microbatches, in a pipeline where its schedule has the two side by side (of 1f1b, extra "
         "= "
         "the stages behind, or eager_1f1b, keep stages from waiting for each other); default "
         "false"}};
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    const auto flag = [&](const char* field) {
      return config.fields.contains(field) && config.fields[field].get<bool>();
    };
    const auto tensor = mesh::group_size(plan.mesh, mesh::axes_of_kind(plan.mesh, "tensor"));
    auto& overlap = plan.overlap;
    overlap.accumulate = flag("accumulate");
    overlap.step = flag("step");
    overlap.receives = flag("receives");
    overlap.experts = flag("experts");
    overlap.weights = flag("weights");
    if (overlap.weights && plan.pipeline.cuts() && splits_backward(plan.pipeline.schedule)) {
      fail("overlap",
           "weights = true delays weight gradients, and so does the schedule {}: leave one "
           "of them out",
           plan.pipeline.schedule);
    }
    if (overlap.receives && !plan.pipeline.cuts()) {
      fail("overlap",
           "receives are those of a pipeline's stages: use pipeline_parallel over an axis pipe of "
           "several ranks beside it, but the plan has none");
    }
    if (config.fields.contains("slices")) {
      overlap.slices = config.fields["slices"].get<int64_t>();
      if (overlap.slices < 1) {
        fail("overlap", "slices must be at least 1, but got {}", overlap.slices);
      }
      if (overlap.slices > 1 && tensor < 2) {
        fail("overlap",
             "slices cut what tensor_parallel sums and gathers: give the mesh an axis tensor of "
             "several ranks, but it has {}",
             tensor);
      }
    }
    if (config.fields.contains("bulk")) {
      overlap.bulk = kinds(config.fields["bulk"], "bulk", plan::Overlap::all_bulk());
      if (tensor < 2) {
        fail("overlap",
             "bulk is of what tensor_parallel sums and gathers: give the mesh an axis tensor of "
             "several ranks, but it has {}",
             tensor);
      }
    }
    for (const char* field : {"sliced", "whole"}) {
      if (!config.fields.contains(field)) continue;
      if (overlap.slices < 2) {
        fail("overlap", "{} says which products are cut: give slices = 2, but slices is {}", field,
             overlap.slices);
      }
      if (field == std::string_view("whole")) {
        overlap.whole = scopes_of_any(*request.graph, texts(config.fields[field], name(), field));
      } else {
        overlap.sliced = kinds(config.fields[field], field, plan::Overlap::all_sliced());
      }
    }
    defer_head(plan, config, *request.graph);
    std::vector<std::string> decided;
    if (overlap.accumulate) {
      decided.push_back("matrix products add to their gradient in place");
    }
    if (overlap.step) decided.push_back("a bucket is stepped as soon as it is reduced");
    if (overlap.receives) {
      decided.push_back("stages receive what the next section needs while one runs");
    }
    if (overlap.slices > 1) {
      decided.push_back(
          fmt::format("matrix products ({}) are computed in {} pieces beside what moves their rows",
                      join(overlap.sliced), overlap.slices));
    }
    if (overlap.bulk != plan::Overlap::all_bulk()) {
      decided.push_back(fmt::format(
          "of what tensor_parallel moves in the backward pass {} beside other products",
          overlap.bulk.empty() ? "nothing goes" : fmt::format("only {} go", join(overlap.bulk))));
    }
    if (!overlap.deferred.empty()) {
      const auto limit = overlap.deferred_limit;
      decided.push_back(fmt::format(
          "the last stage computes the weight gradient of {} behind all else{}",
          overlap.deferred.front(),
          limit > 0 ? fmt::format(", of {} microbatch{}", limit, limit == 1 ? "" : "es") : ""));
    }
    if (overlap.weights) {
      decided.push_back("gradients of weights are computed behind those of inputs");
    }
    if (overlap.experts) {
      decided.push_back(
          "a microbatch computes while the rows of another one go to their experts or back");
    }
    if (decided.empty()) {
      fail("overlap",
           "say what is to overlap: accumulate = true, step = true, receives = true, slices = 2, "
           "bulk = {{}}, deferred_head = true, weights = true or experts = true, but got none");
    }
    plan.decisions.push_back({"overlap", join(decided)});
  }

 private:
  std::vector<std::string> kinds(const Json& given, const char* field,
                                 const std::vector<std::string>& known) const {
    auto names = texts(given, name(), field);
    for (const auto& kind : names) {
      if (std::find(known.begin(), known.end(), kind) != known.end()) continue;
      fail("overlap", "{} has {}, but got \"{}\"{}", field, join(known), kind,
           did_you_mean(kind, known));
    }
    return names;
  }

  static void defer_head(plan::Plan& plan, const Config& config, const graph::Graph& graph) {
    const auto given = config.fields.value("deferred_head", Json(false));
    const bool counts = given.is_number_integer() && given.get<int64_t>() > 0;
    if (!given.is_boolean() && !counts) {
      fail("overlap", "deferred_head must be true or a number of microbatches above 0, but got {}",
           given.dump());
    }
    if (given == false) {
      if (!config.fields.contains("head")) return;
      fail("overlap",
           "head says whose weight gradient is deferred: give deferred_head = true, too");
    }
    if (!plan.pipeline.cuts()) {
      fail("overlap",
           "deferred_head leaves a product to the end of a pipeline's last stage: use "
           "pipeline_parallel over an axis pipe of several ranks beside it, but the plan has none");
    }
    if (splits_backward(plan.pipeline.schedule)) {
      fail("overlap",
           "deferred_head defers one weight gradient, but the schedule {} already defers all: "
           "leave deferred_head out, or use 1f1b or interleaved",
           plan.pipeline.schedule);
    }
    plan.overlap.deferred = {config.fields.contains("head")
                                 ? named_parameter(graph, config.fields["head"])
                                 : find_head(graph)};
    plan.overlap.deferred_limit = counts ? given.get<int64_t>() : 0;
  }

  static std::string named_parameter(const graph::Graph& graph, const std::string& name) {
    std::vector<std::string> known;
    for (const auto& input : graph.inputs) {
      if (input.kind != graph::Input::Kind::parameter) continue;
      if (input.name == name) return name;
      known.push_back(input.name);
    }
    fail("overlap", "head must be a parameter of the model, but got \"{}\"{}", name,
         did_you_mean(name, known));
  }
};

}  // namespace

std::shared_ptr<const Method> overlap() { return std::make_shared<Overlap>(); }

}  // namespace perigee::methods
