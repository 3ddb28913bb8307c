#include "checkpoint/weights/adapter_folder.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/fail.h"
#include "base/files/durable.h"
#include "base/files/file.h"
#include "base/text/depth.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weights/form.h"
#include "checkpoint/weights/merge.h"
#include "checkpoint/weights/name_list.h"
#include "checkpoint/weights/new_folder.h"
#include "exec/tensor.h"

namespace perigee::checkpoint {
namespace fs = std::filesystem;

namespace {

using hf::Form;
using nlohmann::json;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kTensors = "adapter_model.safetensors";
constexpr std::string_view kPrefix = "base_model.model.";

// Where a tensor of the model is in the folder.
struct Place {
  std::string name;
  Form form = Form::same;
};

// Returns the place of a parameter of the model, with `names` of transformers or its own. `suffix`:
// of an adapter's tensor, whose module is that of the parameter.
Place place_of(const std::string& parameter, int64_t first_dim,
               const std::optional<hf::Names>& names, std::string_view suffix = {}) {
  Place place{parameter};
  if (names) {
    if (const auto stored = names->find(parameter, first_dim);
        stored && stored->names.size() == 1) {
      place = {stored->names[0], stored->form};
    }
  }
  if (!suffix.empty()) {
    place.name = place.name.substr(0, place.name.size() - std::string_view("weight").size());
    place.name += suffix;
    // B's rows have the order of the weight's; neither is transposed.
    const bool by_heads = place.form == Form::heads || place.form == Form::heads_transposed;
    place.form = by_heads && suffix.starts_with("lora_B") ? Form::heads : Form::same;
  }
  place.name = std::string(kPrefix) + place.name;
  return place;
}

// Returns the places of the tensors that a folder of the adapters has, by the model's names.
// `first_dim` returns a tensor's first size.
template <class FirstDim>
std::map<std::string, Place> places_of(const graph::Adapters& adapters,
                                       const std::optional<hf::Names>& names,
                                       const FirstDim& first_dim) {
  std::map<std::string, Place> places;
  for (const auto& weight : adapters.weights) {
    const auto size = first_dim(weight);
    places[graph::adapter_a(weight)] = place_of(weight, size, names, "lora_A.weight");
    places[graph::adapter_b(weight)] = place_of(weight, size, names, "lora_B.weight");
  }
  for (const auto& name : adapters.trained) places[name] = place_of(name, first_dim(name), names);
  return places;
}

std::string module_of(const std::string& name) { return name.substr(0, name.rfind('.')); }

std::string last_of(const std::string& path) { return path.substr(path.rfind('.') + 1); }

json read_config(const std::string& folder) {
  const auto path = (fs::path(folder) / kConfig).string();
  const auto text = read_file(path, "weights");
  check_json_depth(text, "weights", path);
  auto config = json::parse(text, nullptr, false);
  if (!config.is_object()) fail("weights", "{} must hold a JSON object, but does not", path);
  return config;
}

// Throws Error where the config is of other adapters than those of the method `lora`.
void check_config(const std::string& folder, const json& config, const graph::Adapters& adapters) {
  const auto is = [&](const char* key, const json& wanted, const json& absent,
                      std::string_view remedy) {
    const auto found = config.contains(key) ? config[key] : absent;
    if (found == wanted) return;
    fail("weights", "{} of {} must be {}, but is {}: {}", key,
         (fs::path(folder) / kConfig).string(), wanted.dump(), found.dump().substr(0, 80), remedy);
  };
  const char* kind = "lora has no such adapters";
  is("peft_type", "LORA", "LORA", kind);
  is("r", adapters.rank, 8, "set lora's rank to it");
  is("use_rslora", adapters.rslora, false, "set lora's rslora to it");
  const auto alpha = config.value("lora_alpha", json(8));
  if (!alpha.is_number() || alpha.get<double>() != adapters.alpha) {
    is("lora_alpha", adapters.alpha, 8, "set lora's alpha to it");
  }
  is("bias", "none", "none", kind);
  // Adapters that begin with a change of the base: pissa, olora, corda and others.
  if (const auto begin = config.value("init_lora_weights", json(true)); begin != "gaussian") {
    if (!begin.is_boolean()) is("init_lora_weights", true, true, kind);
  }
  const auto is_set = [](const json& value) {
    return !value.is_null() && value != false && !(value.is_structured() && value.empty());
  };
  for (const auto& [key, value] : config.items()) {
    const bool option = key.starts_with("use_") || key.ends_with("_config") ||
                        key.ends_with("_pattern") || key == "lora_bias" ||
                        key == "layer_replication" || key == "target_parameters" ||
                        key == "trainable_token_indices" || key == "alora_invocation_tokens";
    if (!option || key == "use_rslora" || key == "layers_pattern" || !is_set(value)) continue;
    fail("weights", "{} of {} is {}: {}", key, (fs::path(folder) / kConfig).string(),
         value.dump().substr(0, 80), kind);
  }
}

}  // namespace

AdapterValues::AdapterValues(const std::string& folder, const job::ModelConfig& model,
                             const graph::Adapters& adapters,
                             const std::vector<WantedTensor>& wanted)
    : files_(folder) {
  check_config(folder, read_config(folder), adapters);
  std::map<std::string, const WantedTensor*, std::less<>> by_name;
  for (const auto& tensor : wanted) by_name[tensor.name] = &tensor;
  const auto first_dim = [&](const std::string& name) {
    const auto& shape = by_name.at(name)->shape;
    return shape.empty() ? 0 : shape[0];
  };
  // The naming under which most tensors are found.
  const auto names = hf::names_of(model);
  if (names) heads_ = names->heads();
  auto places = places_of(adapters, names, first_dim);
  const auto found_in = [&](const auto& some) {
    return std::ranges::count_if(some, [&](const auto& p) { return files_.find(p.second.name); });
  };
  if (auto own = places_of(adapters, std::nullopt, first_dim); found_in(own) > found_in(places)) {
    places = std::move(own);
  }
  std::vector<std::string> missing, extra;
  std::set<std::string> known;
  for (const auto& [name, place] : places) {
    known.insert(place.name);
    const auto* stored = files_.find(place.name);
    if (!stored) {
      missing.push_back(place.name);
      continue;
    }
    const auto there = shape_in_model(stored->shape, place.form);
    const auto& here = by_name.at(name)->shape;
    if (there != here || !graph::is_floating(stored->dtype)) {
      fail("weights",
           "train.adapter has values of the adapters' shapes, but {} of {} is {} [{}] there and "
           "[{}] here (lora's rank, or another model)",
           place.name, folder, graph::name_of(stored->dtype), fmt::join(there, ", "),
           fmt::join(here, ", "));
    }
    found_[name] = {stored, place.form};
  }
  for (const auto& name : files_.names()) {
    if (!known.contains(name)) extra.push_back(name);
  }
  if (missing.empty() && extra.empty()) return;
  std::vector<std::string> reasons;
  const auto count = [](const auto& list) {
    return fmt::format("{} {}", list.size(), list.size() == 1 ? "is" : "are");
  };
  if (!missing.empty()) {
    reasons.push_back(fmt::format("{} missing: {}", count(missing), listed(missing, extra)));
  }
  if (!extra.empty()) {
    reasons.push_back(
        fmt::format("{} not of lora's adapters: {}", count(extra), listed(extra, missing)));
  }
  fail("weights",
       "train.adapter holds the {} tensors of the adapters that lora adds and no others, but of "
       "those in {}, {}",
       places.size(), folder, fmt::join(reasons, "; "));
}

void AdapterValues::read(std::string_view name, const std::vector<mesh::Range>& ranges,
                         at::Tensor target) const {
  const auto& [stored, form] = found_.find(name)->second;
  const auto all = at::from_blob(const_cast<std::byte*>(stored->bytes.data()), stored->shape,
                                 at::dtype(exec::scalar_type(stored->dtype)));
  target.copy_(part_in_model(all, form, heads_, ranges));
}

std::string AdapterValues::report() const {
  return fmt::format("{} of {} tensors of adapters loaded from {}", found_.size(), found_.size(),
                     files_.path());
}

namespace {

// The checkpoint's weights without adapters, by their names in the folder.
std::map<std::string, std::string> weights_of(const Checkpoint& checkpoint,
                                              const graph::Adapters& adapters,
                                              const std::optional<hf::Names>& names) {
  std::map<std::string, std::string> weights;
  for (const auto& tensor : checkpoint.tensors()) {
    if (!tensor.weight || is_of_adapter(adapters, tensor.name)) continue;
    weights[place_of(tensor.name, tensor.shape.empty() ? 0 : tensor.shape[0], names).name] =
        tensor.name;
  }
  return weights;
}

// Returns names by which PEFT finds exactly these modules: their last components where no other
// module has them, else their paths.
std::vector<std::string> targets(const std::set<std::string>& modules,
                                 const std::map<std::string, std::string>& weights) {
  std::set<std::string> others, list;
  for (const auto& [name, ours] : weights) {
    const auto module = module_of(name.substr(kPrefix.size()));
    if (!modules.contains(module)) others.insert(last_of(module));
  }
  for (const auto& module : modules) {
    list.insert(others.contains(last_of(module)) ? module : last_of(module));
  }
  return {list.begin(), list.end()};
}

nlohmann::ordered_json config_of(const job::ModelConfig& model, const graph::Adapters& adapters,
                                 const std::vector<std::string>& target_modules,
                                 const std::vector<std::string>& saved, bool transposed) {
  const bool hugging_face = model.kind == "hf";
  nlohmann::ordered_json config = {
      {"peft_type", "LORA"},
      {"task_type", nullptr},
      {"base_model_name_or_path", nullptr},
      {"r", adapters.rank},
      {"lora_alpha", adapters.alpha},
      {"lora_dropout", adapters.dropout},
      {"use_rslora", adapters.rslora},
      {"target_modules", target_modules},
      {"modules_to_save", nullptr},
      {"bias", "none"},
      {"fan_in_fan_out", transposed},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"use_dora", false},
      {"rank_pattern", json::object()},
      {"alpha_pattern", json::object()},
  };
  if (hugging_face) {
    config["task_type"] = "CAUSAL_LM";
    config["base_model_name_or_path"] = model.text("folder");
  }
  if (adapters.alpha == std::floor(adapters.alpha)) {
    config["lora_alpha"] = static_cast<int64_t>(adapters.alpha);
  }
  if (!saved.empty()) config["modules_to_save"] = saved;
  return config;
}

}  // namespace

void export_adapter(const Checkpoint& checkpoint, const job::ModelConfig& model,
                    const graph::Adapters& adapters, const std::string& folder) {
  checkpoint.verify();
  // Only a model of kind hf is one of transformers.
  const auto names = model.kind == "hf" ? hf::names_of(model) : std::nullopt;
  const auto weights = weights_of(checkpoint, adapters, names);
  const auto first_dim = [&](const std::string& name) {
    const auto* stored = checkpoint.find(name);
    return stored && !stored->shape.empty() ? stored->shape[0] : 0;
  };
  struct Entry {
    TensorBytes tensor;  // without bytes
    std::string ours;
    Form form;
  };
  std::vector<Entry> entries;
  bool transposed = false;
  for (const auto& [ours, place] : places_of(adapters, names, first_dim)) {
    const auto* stored = checkpoint.find(ours);
    if (!stored) {
      fail("export", "checkpoint {} must have {} of its plan's adapters, but does not",
           checkpoint.folder(), ours);
    }
    entries.push_back({{place.name, stored->dtype, shape_in_model(stored->shape, place.form), {}},
                       ours,
                       place.form});
  }
  std::ranges::sort(entries, {}, [](const Entry& entry) { return entry.tensor.name; });

  std::set<std::string> modules, saved;
  for (const auto& weight : adapters.weights) {
    const auto place = place_of(weight, first_dim(weight), names);
    modules.insert(module_of(place.name.substr(kPrefix.size())));
    transposed = transposed || place.form == Form::transposed ||
                 place.form == Form::heads_transposed;
  }
  for (const auto& [name, ours] : weights) {
    if (std::ranges::find(adapters.trained, ours) != adapters.trained.end()) {
      saved.insert(module_of(name.substr(kPrefix.size())));
    }
  }
  for (const auto& [name, ours] : weights) {
    const auto module = module_of(name.substr(kPrefix.size()));
    const bool trained = std::ranges::find(adapters.trained, ours) != adapters.trained.end();
    if (trained || !saved.contains(module)) continue;
    fail("export",
         "PEFT keeps whole modules beside adapters, but of {} not all parameters are trained, as "
         "{}: match them by lora's `trained`, or export merged weights (--hf, -o)",
         module, ours);
  }
  const auto config = config_of(model, adapters, targets(modules, weights),
                                {saved.begin(), saved.end()}, transposed);
  write_new_folder(folder, "--adapter", [&](const std::string& to) {
    std::vector<TensorBytes> tensors;
    for (const auto& entry : entries) tensors.push_back(entry.tensor);
    at::Tensor held;
    const auto read = [&](size_t i) -> std::span<const std::byte> {
      const auto& entry = entries[i];
      held = as_stored(read_whole(checkpoint, *checkpoint.find(entry.ours)), entry.form,
                       names ? names->heads() : 1);
      return {static_cast<const std::byte*>(held.data_ptr()), held.nbytes()};
    };
    write_safetensors(*folder_target(), (fs::path(to) / kTensors).string(), tensors, read,
                      {{"format", "pt"}});
    write_durably((fs::path(to) / kConfig).string(), config.dump(2) + "\n");
  });
}

}  // namespace perigee::checkpoint
