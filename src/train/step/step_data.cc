#include "train/step/step_data.h"

#include "base/fail.h"
#include "train/step/initial_values.h"

namespace perigee::train {
namespace {

using Kind = compile::Binding::Kind;

// Returns the rank's part of a tensor of a batch that has only the rank's samples.
at::Tensor field_of(const Batch& batch, const compile::Binding& binding) {
  const auto field = batch.find(binding.name);
  if (field == batch.end()) {
    std::vector<std::string> names;
    for (const auto& [known, tensor] : batch) names.push_back(known);
    fail("data", "the data must have the model's input \"{}\", but there is none{}", binding.name,
         did_you_mean(binding.name, names));
  }
  auto ranges = binding.ranges;
  if (ranges.empty()) return field->second;
  if (binding.batched) ranges.front().begin = 0;
  return part_of(field->second, ranges);
}

}  // namespace

std::vector<std::map<std::string, at::Tensor>> step_data(const compile::Program& program,
                                                         int64_t global_batch, int64_t step,
                                                         DataSource& data) {
  const auto samples = global_batch / program.microbatches;  // of one global microbatch
  const auto own = samples / program.model_copies;
  std::vector<std::map<std::string, at::Tensor>> parts(program.microbatches);
  for (int64_t microbatch = 0; microbatch < program.microbatches; ++microbatch) {
    mesh::Range wanted{-1, 0};
    Batch batch;
    for (const auto& binding : program.bindings) {
      if (binding.kind != Kind::data) continue;
      auto rows = binding.ranges.empty() ? mesh::Range{0, own} : binding.ranges.front();
      if (!binding.batched) rows = wanted.begin < 0 ? mesh::Range{0, 1} : wanted;  // any samples
      const auto first = microbatch * samples + program.model_copy * own;
      if (!(rows == wanted)) batch = data.at(step, {first + rows.begin, rows.length});
      wanted = rows;
      parts[microbatch][binding.name] = field_of(batch, binding);
    }
  }
  return parts;
}

}  // namespace perigee::train
