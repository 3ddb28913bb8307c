// The predicted memory of a device on which ops allocate freely, as on a GPU.
#include <ATen/ATen.h>

#include <algorithm>

#include "capture/models/models.h"
#include "compile/draft/layout.h"
#include "exec/tensor.h"
#include "tests/support/torch_test.h"
#include "train/plan/local_cluster.h"
#include "train/plan/predict_memory.h"
#include "train/trainer.h"

namespace perigee::train {
namespace {

// Traces in which every op allocates its results; `complete`: at their planned places.
class ResultTraces : public compile::TraceSource {
 public:
  explicit ResultTraces(bool complete) : complete_(complete) {}
  std::optional<compile::OpTrace> find(const compile::OpInstance& instance) override {
    compile::OpTrace trace{.complete = complete_};
    int64_t bytes = 0;
    for (const auto& type : instance.outputs) {
      trace.output_allocation.push_back(type ? static_cast<int32_t>(trace.allocations.size()) : -1);
      trace.output_strides.emplace_back();
      if (!type) continue;
      trace.allocations.push_back(type->bytes());
      trace.freed_before.emplace_back();
      trace.output_strides.back() = compile::contiguous_strides(type->shape);
      bytes += type->bytes();
    }
    most = std::max(most, bytes);
    return trace;
  }
  int64_t most = 0;  // bytes of an op's results

 private:
  bool complete_;
};

TEST_CASE("where ops allocate freely, the largest results of an op count beside their places") {
  const auto job = Job::parse(
      "[model]\nkind = 'mlp'\nlayers = 3\nwidth = 32\n[data]\nsynthetic = true\n[batch]\nglobal = "
      "8\n[cluster]\ndevice = 'cpu'\n",
      "test.toml");
  auto built = make_model(job.model, job.data.sequence);
  Batch example;
  for (const auto& field : built.batch) {
    auto shape = field.shape;
    shape.insert(shape.begin(), 1);
    example[field.name] = at::zeros(shape, exec::scalar_type(field.dtype));
  }
  const auto source = perigee::source(built.model.module, example, built.model.forward);
  auto planned = make_plan(source, Strategy::data(R"([["parallel_mode", [["data", 2]]]])"), job,
                           {2});
  const auto peaks = [&](ResultTraces& traces) {
    auto plan = planned.plan;
    predict(plan, planned.captured.graph, job, traces);
    CHECK(plan.prediction.peak_bytes.size() == 2);
    return plan.prediction.peak_bytes;
  };
  ResultTraces planned_places(true), anywhere(false);
  auto expected = peaks(planned_places);
  const auto got = peaks(anywhere);
  CHECK(anywhere.most > 0);
  for (auto& bytes : expected) bytes += anywhere.most;
  CHECK(got == expected);
}

TEST_CASE("a plan leaves memory of a GPU to CUDA's context and to libraries") {
  constexpr int64_t kGiB = int64_t{1} << 30;
  CHECK(memory_for_plans(80 * kGiB) == 78.5 * kGiB);
  CHECK(memory_for_plans(kGiB) == 0);
}

}  // namespace
}  // namespace perigee::train
