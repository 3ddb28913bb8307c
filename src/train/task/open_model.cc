#include "train/task/open_model.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>

#include "base/fail.h"
#include "binding/around.h"
#include "capture/exported/load.h"
#include "capture/models/hf/architecture.h"
#include "capture/models/models.h"
#include "checkpoint/safetensors.h"
#include "data/data.h"
#include "exec/tensor.h"
#include "job/model_kinds.h"
#include "text/tokenizer.h"
#include "train/task/job_json.h"
#include "train/task/threads.h"

namespace perigee::train {
namespace {

binding::LuaModelSettings lua_settings(const Task& task, const job::Job& job, std::string file) {
  binding::LuaModelSettings settings;
  settings.file = std::move(file);
  settings.job = job_json(job);
  const bool bytes = job.data.tokenizer == "bytes";
  settings.job["data"]["vocab"] = bytes ? 256 : text::make_tokenizer(job.data.tokenizer)->vocab();
  settings.lua.limits = {task.script_seconds, task.script_megabytes};
  settings.lua.seed = static_cast<uint64_t>(job.seed);
  settings.lua.runtime_folder = task.runtime_folder;
  return settings;
}

// Returns the model's forward function with the fields of a batch passed by position: those of the
// list that `prepare` returns, or the data's `fields`.
Forward by_order(const Task& task, const Model& model, std::vector<std::string> fields) {
  const auto& kind = task.job.model.kind;
  if (model.inputs.empty() && kind != "lua") {
    fail(
        "model",
        "model.unpack = \"sequence\" gives a model its inputs by their order, but {} reads them by "
        "name: fill in Model::inputs, or leave the key out",
        task.job.model.text("file"));
  }
  return [forward = model.forward, inputs = model.inputs,
          fields = std::move(fields)](const Batch& batch) {
    std::vector<std::string> given;
    while (batch.contains(field_name(given.size()))) given.push_back(field_name(given.size()));
    if (given.empty()) {
      std::copy_if(fields.begin(), fields.end(), std::back_inserter(given),
                   [&](const auto& field) { return batch.contains(field); });
    }
    if (!inputs.empty() && given.size() > inputs.size()) {
      fail("model",
           "model.unpack = \"sequence\" gives the model its {} inputs ({}) in their order, but the "
           "batch has {} fields ({})",
           inputs.size(), fmt::join(inputs, ", "), given.size(), fmt::join(given, ", "));
    }
    Batch bound;
    for (size_t i = 0; i < given.size(); ++i) {
      bound[inputs.empty() ? field_name(i) : inputs[i]] = batch.at(given[i]);
    }
    return forward(bound);
  };
}

// Returns the forward function with the declaration of model.loss, which replaces the model's own.
Forward declared(Forward forward, const std::string& loss) {
  if (loss == "proven") return forward;
  const auto reduction = loss == "mean"  ? Reduction::mean
                         : loss == "sum" ? Reduction::sum
                                         : Reduction::weighted;
  return [forward = std::move(forward), reduction](const Batch& batch) {
    auto result = forward(batch);
    result.reduction = reduction;
    return result;
  };
}

// Returns how the job's data fills the samples of a built-in model: its batch has `documents` and
// `positions` where data.pack says so or where both are tensors of data.tensors.
Packing packing_of(const job::Job& job) {
  if (job.data.pack == "documents") return Packing::documents;
  if (!job.model.values.contains("vocab") || job.data.files.empty() || job.data.tensors.empty()) {
    return Packing::none;
  }
  std::set<std::string> names;
  for (const auto& path : job.data.files) {
    const checkpoint::SafetensorsFile file(path);
    for (const auto& tensor : file.tensors()) names.insert(tensor.name);
  }
  if (!names.contains("documents")) return Packing::none;
  if (!names.contains("positions")) {
    fail("data",
         "data.tensors with \"documents\" must have \"positions\" (of each token in its document), "
         "but has none");
  }
  return Packing::documents;
}

// Returns the model wrapped as model.unpack and model.around say.
std::shared_ptr<const ModelSource> make_source(const Task& task, const Model& model,
                                               const Batch& example,
                                               const std::vector<std::string>& data_fields) {
  auto forward = model.forward;
  if (task.job.model.unpack == "sequence") forward = by_order(task, model, data_fields);
  if (const auto& script = task.job.model.around; !script.empty()) {
    std::set<std::string> fields;
    for (const auto& [name, tensor] : example) fields.insert(name);
    forward = binding::around(std::move(forward), std::move(fields),
                              lua_settings(task, task.job, script));
  }
  if (job::model_kind(task.job.model.kind).file != "") {
    forward = declared(std::move(forward), task.job.model.text("loss"));
  }
  return std::make_shared<ModelSource>(model.module, example, std::move(forward),
                                       task.job.data.batched_names);
}

// Returns the names of the model's inputs, ascending.
std::vector<std::string> inputs_of(const job::Job& job) {
  std::set<std::string> names;
  for (const auto& field : job.model.fields) names.insert(field.name);
  if (names.empty() && !job::model_kind(job.model.kind).file.empty()) {
    for (const auto& path : job.data.files) {
      const checkpoint::SafetensorsFile file(path);
      for (const auto& tensor : file.tensors()) names.insert(tensor.name);
    }
  }
  if (names.empty()) {
    for (const auto& field : make_model(job.model, job.data.sequence, packing_of(job)).batch) {
      names.insert(field.name);
    }
  }
  return {names.begin(), names.end()};
}

// Returns data.batched with indices of inputs replaced by their names.
std::vector<std::string> batched_names(const job::Job& job) {
  auto list = job.data.batched;
  const auto is_index = [](const std::string& text) {
    return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  };
  if (std::ranges::none_of(list, is_index)) return list;
  const auto names = inputs_of(job);
  for (auto& input : list) {
    if (!is_index(input) || std::ranges::find(names, input) != names.end()) continue;
    if (input.size() > 9 || std::stoull(input) >= names.size()) {
      fail("job",
           "data.batched lists positions of the model's {} inputs ({}), from 0 (Alpa's "
           "batch_argnums from 1), but got {}",
           names.size(), fmt::join(names, ", "), input);
    }
    input = names[std::stoull(input)];
  }
  return list;
}

// Returns the model of a file that describes no batch, or nothing for other kinds.
std::optional<Model> load_file(const job::Job& job) {
  const auto& kind = job.model.kind;
  if (kind == "torchscript") return load_script(job.model.text("file"));
  if (kind == "exported") return load_exported(job.model.text("file"));
  if (kind == "plugin") {
    return load_plugin(job.model.text("file"), job_json(job)["model"].dump());
  }
  return std::nullopt;
}

}  // namespace

job::Job completed(const Task& task) {
  auto job = task.job;
  if (job.model.kind == "hf") {
    const auto vocab = hf::read_architecture(job.model.text("folder")).vocab;
    auto& given = std::get<int64_t>(job.model.values["vocab"]);
    if (given != 0 && given != vocab) {
      fail("job", "model.vocab is the vocab_size of {} ({}), but got {}", job.model.text("folder"),
           vocab, given);
    }
    given = vocab;
  } else if (job.model.values.contains("vocab") && job.model.integer("vocab") == 0) {
    job.model.values["vocab"] = text::make_tokenizer(job.data.tokenizer)->vocab();
  }
  if (job.model.kind == "lua") {
    job.model.fields.clear();
    for (const auto& field : binding::lua_batch(lua_settings(task, job, job.model.text("file")))) {
      job.model.fields.push_back({field.name, std::string(graph::name_of(field.dtype)), field.shape,
                                  field.classes, field.shift});
    }
  }
  job.data.batched_names = batched_names(job);
  job.cluster.threads = threads_of_rank(job, task.world);
  return job;
}

std::shared_ptr<const ModelSource> open_model(const Task& task) {
  const auto& job = task.job;
  if (const auto model = load_file(job)) {
    auto data = data::open_data(job);
    return make_source(task, *model, data.training->at(0, {0, 1}), data.fields);
  }
  const bool lua = job.model.kind == "lua";
  auto built = lua ? binding::load_lua(lua_settings(task, job, job.model.text("file")))
                   : make_model(job.model, job.data.sequence, packing_of(job));
  Batch example;
  std::vector<std::string> fields;
  const bool by_order = job.model.unpack == "sequence";
  const bool described = !built.batch.empty() && !(by_order && !job.data.tensors.empty());
  if (!described || by_order) {
    const auto data = data::open_data(job);
    fields = data.fields;
    if (!described) example = data.training->at(0, {0, 1});
  }
  for (const auto& field : built.batch) {
    if (!lua) built.model.inputs.push_back(field.name);
    if (!described) continue;
    auto shape = field.shape;
    if (job.data.is_batched(field.name)) shape.insert(shape.begin(), 1);
    example[field.name] = at::empty(
        shape, at::TensorOptions().device(at::kMeta).dtype(exec::scalar_type(field.dtype)));
  }
  return make_source(task, built.model, example, fields);
}

}  // namespace perigee::train
