// Fixtures of Hugging Face models, and trainers of them.
#pragma once

#include <fmt/format.h>
#include <torch/nn/module.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "capture/models/models.h"
#include "checkpoint/weights/form.h"
#include "checkpoint/weights/initial_weights.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/torch_test.h"
#include "train/trainer.h"

namespace perigee::test {

inline std::string fixture(const std::string& name) { return "tests/train/hf/fixtures/" + name; }

inline nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

inline void write_json(const std::string& path, const nlohmann::json& value) {
  std::ofstream(path) << value.dump(1);
}

// A job that trains the model of a folder with plain SGD of learning rate 1.
inline Job hf_job(const std::string& folder, const std::string& dtype = "float64",
                  const std::string& train = "") {
  return Job::parse("name = 'hf'\n[model]\nkind = 'hf'\nfolder = '" +
                        std::filesystem::absolute(folder).string() + "'\ndtype = '" + dtype +
                        "'\n[data]\nsynthetic = true\nsequence = 8\n[batch]\nglobal = 8\n"
                        "[optimizer]\nname = 'sgd'\nlr = 1.0\nmomentum = 0.0\nweight_decay = 0.0\n"
                        "clip_norm = 0.0\n[lr_schedule]\nkind = 'constant'\nwarmup = 0\n"
                        "[cluster]\ndevice = 'cpu'\n[train]\nsteps = 1\nvalidate_every = 0\n" +
                        train,
                    "hf.toml");
}

// The model of a job of kind hf, gpt or llama, and its source.
struct HfModel {
  Job job;
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<const ModelSource> source;

  explicit HfModel(const Job& given) : job(given) {
    auto built = make_model(job.model, job.data.sequence);
    module = built.model.module;
    Batch example;
    for (const auto& field : built.batch) {
      example[field.name] = at::zeros({1, job.data.sequence}, at::kLong);
    }
    source = perigee::source(module, example, built.model.forward);
  }

  Trainer trainer(const Strategy& strategy = {}, int64_t ranks = 1) const {
    return Trainer{*module, make_plan(source, strategy, job, {ranks}), job, Ranks::threads(ranks),
                   nullptr};
  }

  // Returns the trainer's weights by name.
  std::map<std::string, at::Tensor> weights(Trainer& trainer) const {
    const HfModel copy(job);
    trainer.copy_to(*copy.module);
    std::map<std::string, at::Tensor> result;
    for (const auto& item : copy.module->named_parameters()) {
      result[item.key()] = item.value().detach().clone();
    }
    return result;
  }
};

// A copy of a fixture's folder that a test may damage.
class FolderCopy {
 public:
  explicit FolderCopy(const std::string& name) {
    std::filesystem::copy(fixture(name), path(), std::filesystem::copy_options::recursive);
  }
  std::string path() const { return folder_.at("model"); }
  std::string at(const std::string& name) const { return path() + "/" + name; }
  // Sets keys of config.json; null removes one.
  void set(const nlohmann::json& keys) const {
    auto config = read_json(at("config.json"));
    config.merge_patch(keys);
    write_json(at("config.json"), config);
  }
  // Gives a key of config.json the value null.
  void set_null(const std::string& key) const {
    auto config = read_json(at("config.json"));
    config[key] = nullptr;
    write_json(at("config.json"), config);
  }

 private:
  Folder folder_;
};

// Returns the norm and two projections, as make_fixtures.py has them.
inline std::vector<double> summary(const at::Tensor& tensor) {
  const auto flat = tensor.to(at::kDouble).flatten();
  const auto places = at::arange(flat.numel(), at::kDouble);
  return {flat.norm().item<double>(), (flat * at::sin(places + 1)).sum().item<double>(),
          (flat * at::cos(2 * places + 1)).sum().item<double>()};
}

// Returns whether the two agree to the tolerance, relative to 1 + the norm.
inline bool agree(const std::vector<double>& got, const std::vector<double>& wanted,
                  double tolerance) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!(std::abs(got[i] - wanted[i]) <= tolerance * (1 + wanted[0]))) return false;
  }
  return got.size() == wanted.size();
}

inline at::Tensor tensor_of(const nlohmann::json& rows) {
  std::vector<int64_t> flat;
  for (const auto& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  return at::tensor(flat, at::kLong).view({static_cast<int64_t>(rows.size()), -1});
}

inline Batch batch_of(const nlohmann::json& values) {
  return {{"tokens", tensor_of(values["tokens"])}, {"labels", tensor_of(values["labels"])}};
}

}  // namespace perigee::test
