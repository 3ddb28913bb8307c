#include "train/step/rank_trainer.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/fail.h"
#include "base/log_format.h"
#include "checkpoint/files.h"
#include "checkpoint/holdings.h"
#include "checkpoint/stored.h"
#include "exec/cuda.h"
#include "exec/memory/allocator.h"
#include "exec/tensor.h"
#include "plan/units.h"
#include "train/ranks/replay_steps.h"
#include "train/ranks/share.h"
#include "train/step/check_loss.h"
#include "train/step/initial_values.h"
#include "train/step/step_data.h"
#include "train/step/step_scalars.h"
#include "train/step/step_spec.h"
#include "train/task/threads.h"

namespace perigee::train {
namespace {

using Kind = compile::Binding::Kind;
using graph::Input;

// Number of first steps after which the memory of libraries is read.
constexpr int64_t kWatchedSteps = 3;

void check_device(const plan::Plan& plan, const exec::Device& device) {
  if (!plan.fp8 || plan.fp8->product != plan::Fp8::Product::native) return;
  const auto place = device.place();
  if (place.is_cuda() && exec::cuda_host()
                             .gpus()
                             .found.at(static_cast<size_t>(place.index()))
                             .multiplies_eight_bits()) {
    return;
  }
  fail(
      "fp8",
      "the plan has the device multiply eight-bit floats itself (GPUs of compute capability 8.9 or "
      "later do), but this rank computes on {}: plan with fp8's product = \"auto\" or "
      "\"emulated\"",
      device.kind());
}

}  // namespace

RankTrainer::RankTrainer(const Blueprint& blueprint, const job::Job& job, Connection connection,
                         compile::TraceSource& traces,
                         const std::function<compile::Program(compile::Program)>& edit)
    : blueprint_(blueprint),
      job_(job),
      connection_(std::move(connection)),
      communicator_(*connection_.communicator),
      traces_(traces),
      spec_(step_spec(job, blueprint.training)),
      stages_(blueprint.training, blueprint.plan) {
  check_device(blueprint.plan, *connection_.device);
  auto program = compile::compile(blueprint.training, blueprint.plan, spec_, communicator_.rank(),
                                  traces);
  compile::verify(program);
  if (edit) program = edit(std::move(program));
  executor_ = std::make_unique<exec::Executor>(std::move(program), *connection_.tensors,
                                               blueprint.plan.mesh, executor_options());
  replay_steps(*executor_, "training", job_, connection_);
}

RankTrainer::~RankTrainer() = default;

exec::ExecutorOptions RankTrainer::executor_options() const {
  return {static_cast<int>(threads_of_rank(job_, connection_.local_ranks)),
          static_cast<uint64_t>(job_.seed), connection_.device};
}

void RankTrainer::set_loss_scale(double scale) {
  if (!(std::isfinite(scale) && scale > 0)) {
    fail("train", "the scale of a step's loss is a number above 0, but got {}", scale);
  }
  if (!executor_->program().find(Kind::state, "loss_scale:value")) return;
  executor_->tensor(Kind::state, "loss_scale:value").fill_(scale);
  loss_scale_.reset();
}

RankTrainer::Stored RankTrainer::stored(const checkpoint::Checkpoint& checkpoint,
                                        const compile::Binding& binding) const {
  const auto& program = executor_->program();
  if (!checkpoint::is_kept(blueprint_.plan, binding)) return {};
  // A checkpoint lacks this state where the resumed run adds loss scaling or fp8.
  const bool of_method = binding.name.starts_with("loss_scale:") ||
                         binding.name.starts_with("fp8:");
  auto part = checkpoint::part_of_binding(program, binding);
  auto own = checkpoint::part_of_copies(part, program.model_copies, program.model_copy);
  // It also does where histories have another length, or are per rank and the mesh differs.
  const auto fits = [&](const auto& wanted) {
    const auto* found = checkpoint.find(wanted.name);
    return found && found->shape == wanted.shape;
  };
  if (program.model_copies > 1 && fits(own)) return {std::move(own), true};
  if (of_method && !fits(part)) return {};
  return {std::move(part), false};
}

void RankTrainer::require_fits(const checkpoint::Checkpoint& checkpoint) const {
  if (!blueprint_.plan.adapters) {
    for (const auto& tensor : checkpoint.tensors()) {
      const auto& name = tensor.name;
      if (!tensor.weight || !name.ends_with(".lora_A.weight")) continue;
      if (blueprint_.training.find_input(name)) continue;
      fail("train",
           "checkpoint {} has adapters ({}), but the plan has none: add the method lora to the "
           "strategy, or export the run and start from its merged weights (train.weights)",
           checkpoint.folder(), name);
    }
  }
  for (const auto& binding : executor_->program().bindings) {
    if (const auto found = stored(checkpoint, binding); found.part) {
      checkpoint::require_stored(checkpoint, *found.part);
    }
  }
}

void RankTrainer::load(const checkpoint::Checkpoint& checkpoint, const Done& done) {
  require_fits(checkpoint);
  const auto& bindings = executor_->program().bindings;
  int64_t part_of_all = 0;
  for (const auto& binding : bindings) {
    done(part_of_all++, std::ssize(bindings));
    const auto found = stored(checkpoint, binding);
    if (!found.part) continue;
    const auto tensor = executor_->tensor(binding);
    checkpoint::read_stored(checkpoint, *found.part, found.of_copy ? tensor.unsqueeze(0) : tensor);
  }
  loss_scale_.reset();
}

StepResult RankTrainer::run(exec::Executor& executor, int64_t step, DataSource& data,
                            std::map<std::string, double> scalars, bool training) {
  const auto& program = executor.program();
  // Read all samples of the step first, so that the peak counts only the step's own allocations.
  const auto parts = step_data(program, job_.batch.global, step, data);
  exec::StepInputs inputs;
  inputs.step = step;
  inputs.scalars = std::move(scalars);
  inputs.data = [&](const std::string& name, int64_t microbatch) {
    return parts[microbatch].at(name);
  };
  const bool guarded = training && (spec_.guarded || blueprint_.plan.precision.guards());
  if (guarded && !loss_scale_) read_loss_scale();
  connection_.device->reset_peak();
  executor.run(inputs);
  if (training) {
    step_peak_ = connection_.device->peak();
    if (++steps_run_ <= kWatchedSteps) {
      library_bytes_ = std::max(library_bytes_, exec::library_bytes());
    }
  }
  StepResult result;
  if (guarded && loss_scale_) {
    const auto scale = *loss_scale_, skipped = skipped_steps_;
    read_loss_scale();
    if (blueprint_.plan.precision.loss_scale.kind != plan::LossScale::Kind::none) {
      result.loss_scale = scale;
    }
    result.skipped = skipped_steps_ > skipped;
  }
  for (const auto& name : executor.names(Kind::result)) {
    const auto value = executor.tensor(Kind::result, name);
    if (name == "loss") {
      result.loss = value.item<double>();
    } else if (name == "grad_norm") {
      result.grad_norm = value.item<double>();
    } else {
      result.results[name] = value;
    }
  }
  return result;
}

void RankTrainer::read_loss_scale() {
  // A model without parameters has no loss scale.
  if (!executor_->program().find(Kind::state, "loss_scale:value")) return;
  const auto number = [&](const char* name) {
    return executor_->tensor(Kind::state, name).item<double>();
  };
  loss_scale_ = number("loss_scale:value");
  skipped_steps_ = number("loss_scale:skipped_steps");
}

void RankTrainer::trace(int64_t step, std::function<void(const std::string& trace)> done) {
  traced_step_ = step;
  traced_ = std::move(done);
}

void RankTrainer::check_loss(int64_t step, DataSource& data) {
  const auto& plan = blueprint_.plan;
  const auto microbatch = job_.batch.global / plan.microbatches;
  check_declared_loss(blueprint_.training, *blueprint_.two_microbatches, plan, [&](LossRun loss) {
    auto spec = spec_;
    spec.evaluation = true;
    spec.borrow_weights = true;
    auto program = compile::compile(loss.graph, loss.plan, spec, communicator_.rank(), traces_);
    auto options = executor_options();
    options.lender = executor_.get();
    exec::Executor executor(std::move(program), *connection_.tensors, loss.plan.mesh, options);
    const auto parts = step_data(executor.program(), 2 * microbatch, step, data);
    exec::StepInputs inputs;
    inputs.step = step;
    inputs.data = [&](const std::string& name, int64_t part) { return parts[part].at(name); };
    executor.run(inputs);
    return executor.tensor(Kind::result, "loss").item<double>();
  });
}

StepResult RankTrainer::step(int64_t step, DataSource& data, const StepLimits& limits) {
  if (blueprint_.two_microbatches && !loss_checked_) {
    check_loss(step, data);
    loss_checked_ = true;
  }
  std::map<std::string, double> scalars;
  if (!spec_.evaluation) scalars = step_scalars(job_, step);
  if (spec_.guarded) {
    auto& most_loss = scalars["most_loss"];
    auto& most_norm = scalars["most_norm"];
    most_loss = std::min(most_loss, limits.loss);
    most_norm = std::min(most_norm, limits.grad_norm);
    for (const auto& name : executor_->names(Kind::state)) {
      if (name.starts_with("loss_scale:")) {
        guard_before_[name] = executor_->tensor(Kind::state, name).clone();
      }
    }
  }
  if (step != traced_step_) return run(*executor_, step, data, std::move(scalars), true);
  // A barrier gives the clocks of all hosts a common origin.
  const auto group = everyone(communicator_);
  group->run({.kind = exec::Collective::Kind::barrier});
  const auto origin = exec::now();
  executor_->record(true);
  auto result = run(*executor_, step, data, std::move(scalars), true);
  const auto mine = compile::chrome_trace(executor_->intervals(), communicator_.rank(),
                                          executor_->program().streams, origin);
  executor_->record(false);
  traced_(compile::join_traces(gather_texts(mine, *group)));
  return result;
}

StepResult RankTrainer::evaluate(int64_t step, DataSource& data) {
  if (!evaluator_) {
    auto spec = spec_;
    spec.evaluation = true;
    spec.borrow_weights = true;
    auto plan = blueprint_.plan;
    auto graph = blueprint_.evaluation;
    // Units are the same as in training, so they need the parameters that evaluation does not use.
    for (const auto& input : blueprint_.training.inputs) {
      if (plan.units.empty() || input.kind != Input::Kind::parameter) continue;
      if (graph.find_input(input.name)) continue;
      graph.add_input(input.kind, input.name, blueprint_.training.type(input.value));
    }
    plan.graph_hash = graph::structural_hash(graph);
    if (plan.microbatches == 1 && !plan.pipeline.cuts() && copies_of(plan) == 1) {
      for (const auto& output : graph.outputs) {
        if (output.kind == graph::Output::Kind::result) spec.results.push_back(output.name);
      }
    }
    auto program = compile::compile(graph, plan, spec, communicator_.rank(), traces_);
    auto options = executor_options();
    options.lender = executor_.get();
    evaluator_ = std::make_unique<exec::Executor>(std::move(program), *connection_.tensors,
                                                  plan.mesh, options);
    replay_steps(*evaluator_, "validation", job_, connection_);
  }
  return run(*evaluator_, step, data, {}, false);
}

void RankTrainer::forget_skipped() {
  for (const auto& [name, before] : guard_before_) {
    executor_->tensor(Kind::state, name).copy_(before);
  }
  loss_scale_.reset();
}

void RankTrainer::end_evaluation() { evaluator_.reset(); }

at::Tensor RankTrainer::averaged(const at::Tensor& own) {
  const auto& plan = blueprint_.plan;
  if (copies_of(plan) == 1) return own;
  auto mean = own.clone();
  const auto ranks = mesh::group_of(plan.mesh, plan.copy_axes, communicator_.rank());
  connection_.tensors->group(plan.copy_axes.text(), ranks)
      ->run({.input = mean, .output = mean, .reduce = mesh::Reduce::average});
  return mean;
}

at::Tensor RankTrainer::joined_parts(const std::string& name) {
  const auto& plan = blueprint_.plan;
  const auto rank = communicator_.rank();
  const auto held = stages_.own(blueprint_.training, rank);
  for (const auto& flat : plan::flats(plan, held, rank)) {
    if (!flat.in_parts) continue;
    for (const auto& member : flat.members) {
      if (member.name != name) continue;
      // Each rank's pieces are contiguous, and the ranks' pieces follow each other in rank order.
      exec::Transfer transfer{.kind = exec::Collective::Kind::all_gather};
      for (int64_t begin = 0; begin < flat.parts * flat.part; begin += flat.part) {
        const auto end = std::min(member.offset + member.elements, begin + flat.part);
        transfer.output_counts.push_back(
            std::max<int64_t>(0, end - std::max(member.offset, begin)));
      }
      const auto& axes = flat.unit->axes;
      const auto ranks = mesh::group_of(plan.mesh, axes, rank);
      const auto options =
          at::TensorOptions(connection_.device->place()).dtype(exec::scalar_type(flat.dtype));
      std::vector<at::Tensor> pieces{at::empty({0}, options)};
      for (const auto& binding : executor_->program().bindings) {
        if (binding.kind != Kind::parameter || binding.name != name) continue;
        pieces.push_back(executor_->tensor(binding).view({-1}));
      }
      transfer.input = at::cat(pieces);
      transfer.output = at::empty({member.elements}, options);
      const auto result = transfer.output;
      connection_.tensors->group(axes.text(), ranks)->start_flat(std::move(transfer))->wait();
      return result.view(member.shape);
    }
  }
  return {};
}

at::Tensor RankTrainer::full(Kind kind, const std::string& name) {
  const auto& plan = blueprint_.plan;
  if (!plan.pipeline.cuts()) return full_of_stage(kind, name);
  // Broadcast from the first stage that has it to the others; with unequal submeshes, from that
  // stage's first rank to all ranks.
  std::string axes = plan.pipeline.axis;
  if (plan.mesh.is_ragged()) {
    for (size_t a = plan.mesh.axes.size() - 1; a-- > 0;) axes = plan.mesh.axes[a].name + "," + axes;
  }
  const auto ranks = mesh::group_of(plan.mesh, mesh::AxisSet::parse(axes), communicator_.rank());
  const auto root = std::find_if(ranks.begin(), ranks.end(),
                                 [&](int64_t rank) { return stages_.has(name, rank); });
  at::Tensor whole;
  if (stages_.has(name, communicator_.rank())) whole = full_of_stage(kind, name);
  const auto& type = blueprint_.training.type(blueprint_.training.find_input(name)->value);
  if (!whole.defined()) whole = at::empty(type.shape, exec::scalar_type(type.dtype));
  communicator_.group(axes, ranks)
      ->run({.kind = exec::Collective::Kind::broadcast,
             .input = *root == communicator_.rank() ? whole : at::Tensor(),
             .output = whole,
             .peer = root - ranks.begin()});
  return whole;
}

at::Tensor RankTrainer::full_of_stage(Kind kind, const std::string& name) {
  const auto& graph = blueprint_.training;
  const auto& input = *graph.find_input(name);
  const auto& type = graph.type(input.value);
  auto part = kind == Kind::parameter ? joined_parts(name) : at::Tensor();
  if (!part.defined()) part = executor_->tensor(kind, name);
  const auto placed = blueprint_.plan.placements.find(name);
  const auto copy = [&](const at::Tensor& t) {
    const auto mean = graph.is_fixed(input) ? t : averaged(t);
    return mean.to(at::kCPU, exec::scalar_type(type.dtype), /*non_blocking=*/false, /*copy=*/true);
  };
  if (placed == blueprint_.plan.placements.end()) return copy(part);
  // Gather axis by axis, the innermost (first) first, in the order of mesh::local_ranges.
  const auto mesh = mesh::of_rank(blueprint_.plan.mesh, communicator_.rank());
  auto placements = placed->second;
  for (size_t a = 0; a < placements.size(); ++a) {
    if (!placements[a].is_shard() || mesh.axes[a].size == 1) continue;
    const auto dim = placements[a].dim;
    placements[a] = mesh::Placement::replicate();
    const std::vector<std::string> axes = {mesh.axes[a].name};
    const auto group = connection_.tensors->group(mesh.axes[a].name,
                                                  mesh::group_of(mesh, axes, communicator_.rank()));
    auto joined = at::empty(mesh::local_shape(type.shape, placements, mesh, communicator_.rank()),
                            part.options());
    group->run({.kind = exec::Collective::Kind::all_gather,
                .input = part.contiguous(),
                .output = joined,
                .dim = dim});
    part = joined;
  }
  return copy(part);
}

std::map<std::string, at::Tensor> RankTrainer::full_results() {
  const auto group = everyone(communicator_);
  std::map<std::string, at::Tensor> results;
  for (const auto& name : evaluator_->names(Kind::result)) {
    if (name == "loss") continue;
    const auto* binding = evaluator_->program().find(Kind::result, name);
    const auto part = evaluator_->tensor(Kind::result, name).cpu();
    // Ranks exchange the ranges of their pieces; the first rank with a piece adds it to the sum.
    const auto words = std::max<int64_t>(1, 2 * static_cast<int64_t>(binding->ranges.size()));
    auto mine = at::zeros({words}, at::kLong);
    for (size_t d = 0; d < binding->ranges.size(); ++d) {
      mine.data_ptr<int64_t>()[2 * d] = binding->ranges[d].begin;
      mine.data_ptr<int64_t>()[2 * d + 1] = binding->ranges[d].length;
    }
    auto all = at::empty({words * group->size()}, at::kLong);
    group->run(
        {.kind = exec::Collective::Kind::all_gather, .input = mine, .output = all, .dim = 0});
    const auto rows = all.view({group->size(), words});
    bool first = true;
    for (int64_t rank = 0; rank < group->index(); ++rank) first = first && !rows[rank].equal(mine);
    auto whole = at::zeros(binding->ranges.empty() ? part.sizes().vec() : binding->shape,
                           part.options());
    if (first) part_of(whole, binding->ranges).copy_(part);
    group->run({.input = whole, .output = whole});
    results[name] = whole;
  }
  return results;
}

}  // namespace perigee::train
