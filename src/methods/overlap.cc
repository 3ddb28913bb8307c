// overlap: what a step does at the same time.
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/match.h"
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
           "its copies; weight gradients are delayed by the schedules zb1p, zb2p and zbv of "
           "pipeline_parallel).";
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
         "are not cut; default none"}};
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    const auto flag = [&](const char* field) {
      return config.fields.contains(field) && config.fields[field].get<bool>();
    };
    auto& overlap = plan.overlap;
    overlap.accumulate = flag("accumulate");
    overlap.step = flag("step");
    overlap.receives = flag("receives");
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
      if (overlap.slices > 1 && plan.mesh.size_of("tensor") < 2) {
        fail("overlap",
             "slices cut what tensor_parallel sums and gathers: give the mesh an axis tensor of "
             "several ranks, but it has {}",
             plan.mesh.size_of("tensor"));
      }
    }
    for (const char* field : {"sliced", "whole"}) {
      if (!config.fields.contains(field)) continue;
      if (overlap.slices < 2) {
        fail("overlap", "{} says which products are cut: give slices = 2, but slices is {}", field,
             overlap.slices);
      }
      const auto names = texts(config.fields[field], name(), field);
      if (field == std::string_view("whole")) {
        overlap.whole = scopes_of_any(*request.graph, names);
      } else {
        overlap.sliced = names;
      }
    }
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
    if (decided.empty()) {
      fail("overlap",
           "say what is to overlap: accumulate = true, step = true, receives = true or "
           "slices = 2, but got none");
    }
    plan.decisions.push_back({"overlap", join(decided)});
  }
};

}  // namespace

std::shared_ptr<const Method> overlap() { return std::make_shared<Overlap>(); }

}  // namespace perigee::methods
