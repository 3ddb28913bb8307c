// Trainers of small built-in models.
#pragma once

#include <fmt/format.h>
#include <torch/nn/module.h>

#include "capture/models/models.h"
#include "tests/support/test_device.h"
#include "tests/support/torch_test.h"
#include "train/trainer.h"

namespace perigee::trainer_test {

// A small built-in model in float64, with its source and synthetic data.
struct Setup {
  Job job;
  std::shared_ptr<const ModelSource> source;
  std::shared_ptr<torch::nn::Module> module;

  explicit Setup(const std::string& toml) : job(Job::parse(toml, "test.toml")) {
    auto built = make_model(job.model, job.data.sequence);
    module = built.model.module;
    Batch example;
    for (const auto& field : built.batch) {
      auto shape = field.shape;
      shape.insert(shape.begin(), 1);
      const auto type = field.dtype == graph::DType::int64 ? at::kLong : at::kDouble;
      example[field.name] = at::zeros(shape, at::TensorOptions().dtype(type));
    }
    source = perigee::source(module, example, built.model.forward);
  }

  std::unique_ptr<DataSource> data() const { return data::open_synthetic(job).training; }

  // Returns the losses and the final weights of `steps` steps.
  std::pair<std::vector<double>, std::vector<at::Tensor>> run(int64_t ranks, int64_t micro,
                                                              const Strategy& strategy = {}) {
    auto job_here = job;
    job_here.batch.micro = micro;
    Trainer trainer{*module, make_plan(source, strategy, job_here, {ranks}), job_here,
                    Ranks::threads(ranks), data()};
    std::vector<double> losses;
    trainer.on_step([&](const Report& report) {
      losses.push_back(report.loss);
      return Control::go;
    });
    trainer.run();
    Setup other(job::to_toml(job));
    trainer.copy_to(*other.module);
    std::vector<at::Tensor> weights;
    for (const auto& parameter : other.module->parameters())
      weights.push_back(parameter.detach().clone());
    return {losses, weights};
  }
};

inline std::string toml(const std::string& model) {
  return "name = 'test'\n[model]\ndtype = 'float64'\n" + model +
         "\n[data]\nsynthetic = true\nsequence = 8\n[batch]\nglobal = 8\n[train]\nsteps = "
         "3\nvalidate_every = 0\n[cluster]\ndevice = '" +
         (on_gpu() ? "cuda" : "cpu") + "'\n" + (deterministic() ? "deterministic = true\n" : "");
}

// Fixes the mesh: a search might choose a pipeline, which has other microbatches.
inline Strategy data_parallel(int64_t ranks) {
  return Strategy::data(fmt::format(R"([["parallel_mode", [["data", {}]]]])", ranks));
}

}  // namespace perigee::trainer_test
