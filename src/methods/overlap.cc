// overlap: what a step does at the same time.
#include "base/error.h"
#include "methods/names.h"

namespace perigee::methods {
namespace {

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
         "a matrix product whose sums are all-reduced (tensor_parallel) is cut into so many pieces "
         "of rows, one of which is reduced while the next is computed; default 1"}};
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request&) const override {
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
             "slices cut what tensor_parallel all-reduces: give the mesh an axis tensor of several "
             "ranks, but it has {}",
             plan.mesh.size_of("tensor"));
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
          fmt::format("matrix products are computed in {} pieces, each all-reduced beside the next",
                      overlap.slices));
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
