#include "train/rehearsal.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "exec/tensor.h"
#include "search/op_cost.h"
#include "train/rank_trainer.h"
#include "train/step_data.h"

namespace perigee::train {
namespace {

using compile::Binding;
using compile::Instruction;
using compile::Program;

// How often a section runs, and an op instance in one run of it; more say nothing new.
constexpr int kRuns = 2, kPlaces = 4;
// An op that is left out all the same runs where one of so many behind it does not: it leaves the
// caches as they are in a step.
constexpr size_t kBefore = 2;

// Indices must be right whatever they are read from.
bool makes_numbers(const Program& program, const Instruction& instruction) {
  return std::all_of(instruction.outputs.begin(), instruction.outputs.end(), [&](auto value) {
    return !value.defined() || graph::is_floating(program.values[value.index].type.dtype);
  });
}

// Leaves out what is like the rest.
void shorten(const Program& program, compile::Section& section) {
  std::map<std::string, int> places;
  const auto& list = section.instructions;
  std::vector<bool> kept(list.size(), true);
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].kind != Instruction::Kind::op || !makes_numbers(program, list[i])) continue;
    kept[i] = ++places[compile::key(search::instance_of(program, list[i]))] <= kPlaces;
    for (size_t before = 1; kept[i] && before <= std::min(i, kBefore); ++before) {
      kept[i - before] = true;
    }
  }
  std::vector<Instruction> rest;
  for (size_t i = 0; i < list.size(); ++i) {
    if (kept[i]) rest.push_back(list[i]);
  }
  section.instructions = std::move(rest);
}

void shorten(Program& program) {
  for (auto& section : program.sections) shorten(program, section);
  std::vector<int> runs(program.sections.size());
  std::erase_if(program.order, [&](const compile::Run& run) {
    return run.every > 1 || ++runs[run.section] > kRuns;
  });
}

// Samples that say nothing.
struct Plain : DataSource {
  explicit Plain(const Program& program) : program(program) {}
  Batch at(int64_t, Range samples) override {
    Batch batch;
    for (const auto& binding : program.bindings) {
      if (binding.kind != Binding::Kind::data) continue;
      auto shape = binding.shape;
      if (!shape.empty() && binding.batched) shape.front() = samples.length;
      const auto type = exec::scalar_type(program.values[binding.value.index].type.dtype);
      batch[binding.name] = at::randint(2, shape, at::TensorOptions().dtype(type));
    }
    return batch;
  }
  const Program& program;
};

}  // namespace

Rehearsal::Rehearsal(Program program, const mesh::Mesh& mesh, std::shared_ptr<exec::Device> device,
                     const job::Job& job, DataSource* data)
    : job_(job), nobody_(exec::echo_communicator(program.rank, mesh.size())) {
  shorten(program);
  Plain plain(program);
  auto parts = step_data(program, job.batch.global, 1, data ? *data : plain);
  inputs_.step = 0;
  inputs_.data = [parts = std::move(parts)](const std::string& name, int64_t microbatch) {
    return parts[microbatch].at(name);
  };
  executor_ = std::make_unique<exec::Executor>(
      std::move(program), *nobody_, mesh,
      exec::ExecutorOptions{.threads = static_cast<int>(job.cluster.threads),
                            .seed = static_cast<uint64_t>(job.seed),
                            .device = std::move(device)});
  fill();
}

// Weights that keep numbers in range.
void Rehearsal::fill() {
  for (const auto& binding : executor_->program().bindings) {
    if (binding.kind != Binding::Kind::parameter) continue;
    auto tensor = executor_->tensor(binding);
    if (!tensor.is_floating_point()) continue;
    if (binding.shape.size() < 2) {
      tensor.fill_(1);
    } else {
      tensor.normal_(0, 1 / std::sqrt(static_cast<double>(binding.shape.back())));
    }
  }
}

const std::vector<compile::Interval>& Rehearsal::run() {
  ++inputs_.step;
  inputs_.scalars = step_scalars(job_, inputs_.step);
  executor_->record(true);
  executor_->run(inputs_);
  return executor_->intervals();
}

}  // namespace perigee::train
