// overlap: communication that overlaps compute, and passes over memory that are merged.
#include <fmt/ranges.h>

#include <algorithm>

#include "base/fail.h"
#include "base/text/match.h"
#include "methods/execution/head.h"
#include "methods/field_table.h"
#include "methods/names.h"
#include "schedule/schedule.h"

namespace perigee::methods {
namespace {

// Returns the scopes that any of the patterns matches. Patterns may name scopes of several models:
// not each of them needs a match.
std::vector<std::string> scopes_of_any(const graph::Graph& graph,
                                       const std::vector<std::string>& patterns) {
  std::vector<std::string> found;
  for (const auto& scope : graph.scopes) {
    const bool typed = std::find(patterns.begin(), patterns.end(), scope.type) != patterns.end();
    if (typed || matches_any(patterns, scope.path)) found.push_back(scope.path);
  }
  if (found.empty()) {
    fail("overlap",
         "whole must name scopes or module types of the model, but it has none like \"{}\"",
         fmt::join(patterns, "\", \""));
  }
  return found;
}

struct OverlapConfig {
  bool accumulate = false, activations = false, step = false, receives = false;
  int64_t slices = plan::Overlap{}.slices;
  std::vector<std::string> sliced = plan::Overlap::all_sliced();
  std::vector<std::string> whole;
  std::vector<std::string> bulk = plan::Overlap::all_bulk();
  Json deferred_head = false;
  std::optional<std::string> head;
  bool weights = false, experts = false;
};

class OverlapMethod : public MethodWith<OverlapConfig> {
 public:
  std::string_view name() const override { return "overlap"; }
  std::string_view doc() const override {
    return "Overlaps further communication with compute, or merges passes over memory. (grad_comm "
           "overlaps the reduction of gradients, fsdp the gathering of units, offload its copies; "
           "schedules of pipeline_parallel with split backward passes delay weight gradients "
           "themselves.)";
  }

 protected:
  const FieldTable<OverlapConfig>& table() const override {
    using C = OverlapConfig;
    static const FieldTable<C> table(
        {{.name = "accumulate",
          .member = &C::accumulate,
          .doc = "with several microbatches, matrix products add to their gradients in place; "
                 "those of 16 bits write and add to float32 gradients without rounding"},
         {.name = "activations",
          .member = &C::activations,
          .doc = "matrix products of 16 bits (amp_native, half) compute the tanh form of GELU of "
                 "their results, and its gradient with the sum of its rows: on a GPU by "
                 "cuBLASLt, which saves passes over memory"},
         {.name = "step",
          .member = &C::step,
          .doc = "the optimizer steps a bucket of gradients as soon as it is reduced; excludes "
                 "clip_norm and a loss scale"},
         {.name = "receives",
          .member = &C::receives,
          .doc = "a pipeline stage prefetches the messages of its next section into buffers of "
                 "their own"},
         {.name = "slices",
          .member = &C::slices,
          .at_least = 1,
          .doc = "a matrix product whose rows are gathered or whose sums are reduced over ranks "
                 "(tensor_parallel, with and without sequence) is cut into this number of slices "
                 "of rows; one slice is sent while another is computed"},
         {.name = "sliced",
          .member = &C::sliced,
          .allowed = plan::Overlap::all_sliced(),
          .doc = "which products are cut: those with gathered rows, with sums of the forward pass, "
                 "with sums of gradients"},
         {.name = "whole",
          .member = &C::whole,
          .doc = "scopes (`blocks.*.attn.qkv`) or module types whose products are not cut; the "
                 "model must have one of them"},
         {.name = "bulk",
          .member = &C::bulk,
          .allowed = plan::Overlap::all_bulk(),
          .doc = "which collectives of tensor_parallel's backward pass overlap a whole product "
                 "that does not need them: gathers (the product of the input gradient), sums (that "
                 "of the weight gradient); the others are exposed"},
         {.name = "deferred_head",
          .member = &C::deferred_head,
          .doc = "with pipeline_parallel: true defers the weight gradient of the vocabulary head "
                 "to the end of the last stage's schedule; a number limits the deferred "
                 "microbatches, whose activations and gradients are kept until then"},
         {.name = "head",
          .member = &C::head,
          .otherwise = "the weight of the largest product that only the loss follows",
          .doc = "deferred_head: the head's weight"},
         {.name = "weights",
          .member = &C::weights,
          .doc = "compute weight gradients after the input gradients of a microbatch, and with "
                 "pipeline_parallel where a stage would idle; for schedules without split backward "
                 "passes"},
         {.name = "experts",
          .member = &C::experts,
          .doc = "interleave a microbatch's backward pass with the next one's forward pass: one "
                 "computes while the other's rows are exchanged for expert_parallel; requires "
                 "several microbatches, and in a pipeline a schedule that has the two side by side "
                 "(of 1f1b, extra = the later stages, or eager_1f1b, keep stages from waiting for "
                 "each other)"}});
    return table;
  }

  void edit(plan::Plan& plan, const OverlapConfig& given, const Config& config,
            const PlanRequest& request) const override {
    const auto tensor = mesh::group_size(plan.mesh, mesh::axes_of_kind(plan.mesh, "tensor"));
    auto& overlap = plan.overlap;
    overlap.accumulate = given.accumulate;
    overlap.activations = given.activations;
    overlap.step = given.step;
    overlap.receives = given.receives;
    overlap.experts = given.experts;
    overlap.weights = given.weights;
    overlap.slices = given.slices;
    if (overlap.weights && plan.pipeline.cuts() && splits_backward(plan.pipeline.schedule)) {
      fail("overlap",
           "weights = true delays weight gradients, and so does the schedule {}: leave one "
           "of them out",
           plan.pipeline.schedule);
    }
    if (overlap.receives && !plan.pipeline.cuts()) {
      fail("overlap",
           "receives requires pipeline_parallel over an axis pipe of several ranks, but the plan "
           "has none");
    }
    if (overlap.slices > 1 && tensor < 2) {
      fail("overlap",
           "slices requires products that tensor_parallel sums or gathers: give the mesh an axis "
           "tensor of several ranks, but it has {}",
           tensor);
    }
    if (config.has("bulk")) {
      overlap.bulk = given.bulk;
      if (tensor < 2) {
        fail("overlap",
             "bulk requires collectives of tensor_parallel: give the mesh an axis tensor of "
             "several ranks, but it has {}",
             tensor);
      }
    }
    for (const char* field : {"sliced", "whole"}) {
      if (!config.has(field) || overlap.slices > 1) continue;
      fail("overlap", "{} requires products that are cut: give slices = 2, but slices is {}", field,
           overlap.slices);
    }
    if (config.has("sliced")) overlap.sliced = given.sliced;
    if (config.has("whole")) overlap.whole = scopes_of_any(*request.graph, given.whole);
    defer_head(plan, given, *request.graph);
    std::vector<std::string> decided;
    if (overlap.accumulate) {
      decided.push_back("matrix products add to their gradient in place");
    }
    if (overlap.activations) {
      decided.push_back("matrix products compute the GELU after them, and its gradient");
    }
    if (overlap.step) decided.push_back("a bucket is stepped as soon as it is reduced");
    if (overlap.receives) {
      decided.push_back("stages prefetch the messages of their next section");
    }
    if (overlap.slices > 1) {
      decided.push_back(
          fmt::format("matrix products ({}) are computed in {} slices, which overlap the transfer "
                      "of their rows",
                      join(overlap.sliced), overlap.slices));
    }
    if (overlap.bulk != plan::Overlap::all_bulk()) {
      decided.push_back(
          fmt::format("of tensor_parallel's collectives in the backward pass {} other products",
                      overlap.bulk.empty() ? "none overlap"
                                           : fmt::format("only {} overlap", join(overlap.bulk))));
    }
    if (!overlap.deferred.empty()) {
      const auto limit = overlap.deferred_limit;
      decided.push_back(fmt::format(
          "the weight gradient of {} is deferred to the end of the last stage's schedule{}",
          overlap.deferred.front(),
          limit > 0 ? fmt::format(", for {} microbatch{}", limit, limit == 1 ? "" : "es") : ""));
    }
    if (overlap.weights) {
      decided.push_back("weight gradients are computed after input gradients");
    }
    if (overlap.experts) {
      decided.push_back(
          "a microbatch computes while the rows of another one are exchanged for their experts");
    }
    if (decided.empty()) {
      fail("overlap",
           "give at least one of accumulate = true, activations = true, step = true, receives = "
           "true, slices = 2, bulk = {{}}, deferred_head = true, weights = true or experts = true, "
           "but got none");
    }
    plan.decisions.push_back({"overlap", join(decided)});
  }

 private:
  static void defer_head(plan::Plan& plan, const OverlapConfig& config, const graph::Graph& graph) {
    const auto& given = config.deferred_head;
    const bool counts = given.is_number_integer() && given.get<int64_t>() > 0;
    if (!given.is_boolean() && !counts) {
      fail("overlap", "deferred_head must be true or a number of microbatches above 0, but got {}",
           given.dump());
    }
    if (given == false) {
      if (!config.head) return;
      fail("overlap", "head requires deferred_head = true, but deferred_head is false");
    }
    if (!plan.pipeline.cuts()) {
      fail("overlap",
           "deferred_head requires pipeline_parallel over an axis pipe of several ranks, but the "
           "plan has none");
    }
    if (splits_backward(plan.pipeline.schedule)) {
      fail("overlap",
           "deferred_head defers one weight gradient, but the schedule {} already defers all: "
           "leave deferred_head out, or use 1f1b or interleaved",
           plan.pipeline.schedule);
    }
    plan.overlap.deferred = {config.head ? named_parameter(graph, *config.head) : find_head(graph)};
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

std::shared_ptr<const Method> overlap() { return std::make_shared<OverlapMethod>(); }

}  // namespace perigee::methods
