#include "train/measure/solo_run.h"

#include <ATen/ATen.h>

#include <cmath>
#include <string>
#include <utility>

#include "exec/tensor.h"
#include "train/measure/repeated_blocks.h"
#include "train/step/rank_trainer.h"
#include "train/step/step_data.h"
#include "train/step/step_scalars.h"
#include "train/task/threads.h"

namespace perigee::train {
namespace {

using compile::Binding;
using compile::Instruction;
using compile::Program;

// How often each section runs.
constexpr int kRuns = 2;

// Returns the program with few of its blocks and microbatches.
ShortProgram few_blocks_and_microbatches(Program program, const mesh::Mesh& mesh) {
  const auto repeats = find_repeated_blocks(
      {.programs = {program}, .ranks = {program.rank}, .program = {0}, .renamed = {}}, mesh);
  auto shortened = shorten(std::move(program), repeats);
  std::vector<int> runs(shortened.program.sections.size());
  std::erase_if(shortened.program.order, [&](const compile::Run& run) {
    return !run.in_every_step() || ++runs[run.section] > kRuns;
  });
  return shortened;
}

// Random samples of zeros and ones.
struct RandomBits : DataSource {
  explicit RandomBits(const Program& program) : program(program) {}
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

SoloRun::SoloRun(Program program, const mesh::Mesh& mesh, std::shared_ptr<exec::Device> device,
                 const job::Job& job, DataSource* data)
    : job_(job), echo_(exec::echo_communicator(program.rank, mesh.size())) {
  auto shortened = few_blocks_and_microbatches(std::move(program), mesh);
  program = std::move(shortened.program);
  represents_ = std::move(shortened.represents);
  RandomBits bits(program);
  auto parts = step_data(program, job.batch.global, 1, data ? *data : bits);
  inputs_.step = 0;
  inputs_.data = [parts = std::move(parts)](const std::string& name, int64_t microbatch) {
    return parts[microbatch].at(name);
  };
  executor_ = std::make_unique<exec::Executor>(
      std::move(program), *echo_, mesh,
      exec::ExecutorOptions{.threads = static_cast<int>(threads_of_rank(job, 1)),
                            .seed = static_cast<uint64_t>(job.seed),
                            .device = std::move(device)});
  fill();
}

// Sets random weights that keep activations in range.
void SoloRun::fill() {
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

const std::vector<compile::Interval>& SoloRun::run() {
  ++inputs_.step;
  inputs_.scalars = step_scalars(job_, inputs_.step);
  executor_->record(true);
  executor_->run(inputs_);
  return executor_->intervals();
}

double SoloRun::result(const std::string& name) const {
  return executor_->tensor(Binding::Kind::result, name).item<double>();
}

}  // namespace perigee::train
