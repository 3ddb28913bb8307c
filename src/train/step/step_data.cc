#include "train/step/step_data.h"

#include <fmt/ranges.h>

#include "base/fail.h"
#include "base/log_format.h"
#include "exec/tensor.h"
#include "train/step/initial_values.h"
#include "train/step/token_input.h"

namespace perigee::train {
namespace {

using Kind = compile::Binding::Kind;

// Returns the rank's part of a tensor of a batch, which has only the rank's `samples`.
at::Tensor field_of(const Batch& batch, const compile::Binding& binding, int64_t samples) {
  const auto& field = find_field(batch, binding.name);
  auto shape = binding.shape;
  if (binding.batched && !shape.empty()) shape.front() = samples;
  if (field.sizes() != shape) {
    fail("data", "the input \"{}\" must be [{}] where {} samples are asked for, but is [{}]",
         binding.name, fmt::join(shape, ", "), samples, fmt::join(field.sizes(), ", "));
  }
  auto ranges = binding.ranges;
  if (ranges.empty()) return field;
  if (binding.batched) ranges.front().begin = 0;
  return part_of(field, ranges);
}

}  // namespace

const at::Tensor& find_field(const Batch& batch, const std::string& name) {
  const auto field = batch.find(name);
  if (field != batch.end()) {
    if (field->second.defined() && field->second.layout() == at::kStrided) return field->second;
    fail("data", "the input \"{}\" must be a dense tensor, but it is {}", name,
         field->second.defined() ? "sparse" : "undefined");
  }
  std::vector<std::string> names;
  for (const auto& [known, tensor] : batch) names.push_back(known);
  fail("data", "the model reads the input \"{}\", but the data have no tensor of that name{}", name,
       did_you_mean(name, names));
}

void check_fields(const job::Job& job, const graph::Graph& graph, const Batch& batch) {
  for (const auto& input : graph.inputs) {
    if (!reads_input(graph, input.name)) continue;
    const auto& field = find_field(batch, input.name);
    const auto& type = graph.type(input.value);
    const auto text = [&](graph::DType dtype, std::vector<int64_t> shape) {
      if (input.batched && !shape.empty()) shape.erase(shape.begin());
      return fmt::format("{} [{}]", graph::name_of(dtype), fmt::join(shape, ", "));
    };
    const auto wanted = text(type.dtype, type.shape);
    const auto given = text(exec::dtype_of(field.scalar_type()), field.sizes().vec());
    if (wanted == given) continue;
    fail("data", "{} \"{}\" must be {}, as the model takes it, but is {}: change the {}",
         input.batched ? "each sample of the input" : "the input", input.name, wanted, given,
         job.data.tensors.empty() ? "data or the model" : "files, data.sequence or the model");
  }
}

void check_data(const job::Job& job, const graph::Graph& graph, DataSource& data, bool warns) {
  const auto batch = data.at(0, {0, 1});
  check_fields(job, graph, batch);
  for (const auto& [name, tensor] : batch) {
    if (!warns || job.data.tensors.empty() || reads_input(graph, name)) continue;
    log::warn("data.tensors has \"{}\", but the model does not read it", name);
  }
}

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
      parts[microbatch][binding.name] = field_of(batch, binding, wanted.length);
    }
  }
  return parts;
}

}  // namespace perigee::train
