// A model for benchmarks of training steps, its samples, and the traces of its ops.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "capture/models/models.h"
#include "compile/compile.h"
#include "exec/memory/dry_run.h"

namespace perigee {

inline constexpr const char* kJob = R"(
[model]
kind = "gpt"
layers = 4
width = 256
heads = 4
vocab = 256
[data]
synthetic = true
sequence = 256
)";

// Measures the allocations of each distinct op once.
class DryRuns : public compile::TraceSource {
 public:
  std::optional<compile::OpTrace> find(const compile::OpInstance& instance) override {
    const auto [entry, added] = known_.try_emplace(compile::key(instance));
    if (added) entry->second = exec::record_trace(instance);
    return entry->second;
  }

 private:
  std::map<std::string, std::optional<compile::OpTrace>> known_;
};

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// Returns random samples of the model's inputs, the same at each call.
inline Batch batch_of(const BuiltInModel& built, int64_t samples) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  Batch batch;
  for (const auto& field : built.batch) {
    auto shape = field.shape;
    shape.insert(shape.begin(), samples);
    batch[field.name] = at::randint(0, field.classes, shape, generator, at::kLong);
  }
  return batch;
}

}  // namespace perigee
