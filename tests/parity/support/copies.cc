#include "tests/parity/support/copies.h"

#include <fmt/format.h>

#include "exec/executor.h"
#include "exec/op_threads.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using Kind = compile::Binding::Kind;

}  // namespace

std::vector<Outcome> train_copies(const Given& given, const CopyBatch& batch,
                                  const Averaging& averaging, const compile::StepSpec& spec,
                                  int64_t steps) {
  exec::set_op_threads(1);  // as ranks: some ops allocate by the number of threads
  const auto copies = batch.copies, microbatches = batch.microbatches;
  auto plan = plan_of(given, R"([["parallel_mode", [["data", 1]]])" + batch.methods + "]",
                      batch.rows);
  plan.microbatches = microbatches;
  DryRuns traces;
  const auto program = compile::compile(given.graph, plan, spec, 0, traces);
  const auto communicator = exec::single_communicator();
  std::vector<std::unique_ptr<exec::Executor>> models;
  for (int64_t c = 0; c < copies; ++c) {
    models.push_back(std::make_unique<exec::Executor>(program, *communicator, plan.mesh,
                                                      exec::ExecutorOptions{.seed = 9}));
    for (const auto kind : {Kind::parameter, Kind::buffer}) {
      for (const auto& name : models[c]->names(kind)) {
        models[c]->tensor(kind, name).copy_(given.inputs.at(name));
      }
    }
  }
  const auto average = [&](Kind kind, const std::string& name) {
    auto mean = at::zeros_like(models[0]->tensor(kind, name));
    for (const auto& model : models) mean += model->tensor(kind, name);
    mean /= copies;
    for (const auto& model : models) model->tensor(kind, name).copy_(mean);
  };
  std::vector<Outcome> outcomes(static_cast<size_t>(copies));
  for (int64_t step = 1; step <= steps; ++step) {
    double loss = 0, norm = 0;
    for (int64_t c = 0; c < copies; ++c) {
      models[c]->run({.step = step,
                      .scalars = {{"lr.0", 0.01}},
                      .data = [&](const std::string& name, int64_t m) {
                        const auto& all = given.inputs.at(name);
                        const auto rows = all.size(0) / microbatches / copies;
                        return all.narrow(0, (m * copies + c) * rows, rows);
                      }});
      loss += models[c]->tensor(Kind::result, "loss").item<double>() / copies;
      norm += models[c]->tensor(Kind::result, "grad_norm").item<double>() / copies;
    }
    for (auto& outcome : outcomes) {
      outcome.losses.push_back(loss);
      outcome.norms.push_back(norm);
    }
    if (step % averaging.every != 0) continue;
    for (const auto& name : models[0]->names(Kind::parameter)) {
      if (name != averaging.except) average(Kind::parameter, name);
    }
    if (!averaging.states) continue;
    for (const auto& name : models[0]->names(Kind::state)) average(Kind::state, name);
  }
  for (int64_t c = 0; c < copies; ++c) {
    for (const auto kind : {Kind::parameter, Kind::buffer, Kind::state}) {
      for (const auto& name : models[c]->names(kind)) {
        outcomes[c].tensors.emplace(
            name, std::pair(models[c]->tensor(kind, name).clone(), std::vector<mesh::Range>{}));
      }
    }
  }
  return outcomes;
}

std::string compare_copies(const plan::Plan& plan, const std::vector<Outcome>& copies,
                           const std::vector<Outcome>& ranks, double tolerance) {
  const auto axes = plan.copy_axes;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const auto rank = static_cast<int64_t>(r);
    size_t copy = 0;
    if (!axes.empty()) {
      const auto group = mesh::group_of(plan.mesh, axes, rank);
      copy = std::find(group.begin(), group.end(), rank) - group.begin();
    }
    const auto wrong = compare(copies[copy], ranks[r], tolerance);
    if (!wrong.empty()) return fmt::format("rank {}: {}", r, wrong);
  }
  return "";
}

}  // namespace perigee::parity
