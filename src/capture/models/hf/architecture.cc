#include "capture/models/hf/architecture.h"

#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>
#include <set>
#include <utility>

#include "base/fail.h"
#include "base/files/file.h"
#include "base/text/depth.h"
#include "capture/models/hf/families.h"

namespace perigee::hf {
namespace {

using nlohmann::json;

// Reads a config and marks the keys that it has used.
class Config {
 public:
  explicit Config(const std::string& folder)
      : path_((std::filesystem::path(folder) / "config.json").string()) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(folder, ignored)) {
      fail("hf", "model.folder names a folder with config.json, but there is no folder \"{}\"",
           folder);
    }
    const auto text = read_file(path_, "hf");
    check_json_depth(text, "hf", path_);
    keys_ = json::parse(text, nullptr, false);
    if (!keys_.is_object()) {
      fail("hf", "{} must hold a JSON object, but holds {}", path_,
           keys_.is_discarded() ? "text that is not JSON" : keys_.type_name());
    }
  }

  // Throws Error for a key's value.
  template <class... Args>
  [[noreturn]] void wrong(std::string_view key, fmt::format_string<Args...> rule,
                          Args&&... args) const {
    const auto at = keys_.find(key);
    fail("hf", "{}: {} {}, but got {}", path_, key, fmt::format(rule, std::forward<Args>(args)...),
         at == keys_.end() ? "none" : at->dump());
  }

  // Returns the key's value, or null.
  const json& take(const char* key) {
    static const json none;
    used_.insert(key);
    const auto at = keys_.find(key);
    return at == keys_.end() ? none : *at;
  }

  // Returns the key's value; `fallback` where the key is absent, and where its value is null
  // `of_null`, or `fallback` if that is null.
  template <class T>
  T get(const char* key, const json& fallback, const json& of_null = nullptr) {
    const json* value = &take(key);
    if (value->is_null()) {
      value = keys_.contains(key) && !of_null.is_null() ? &of_null : &fallback;
    }
    if constexpr (std::is_same_v<T, bool>) {
      if (!value->is_boolean()) wrong(key, "is true or false");
    } else if constexpr (std::is_same_v<T, int64_t>) {
      if (!value->is_number_integer() || *value < 0) wrong(key, "is a whole number");
    } else if constexpr (std::is_same_v<T, double>) {
      if (!value->is_number()) wrong(key, "is a number");
    } else {
      if (!value->is_string()) wrong(key, "is a string");
    }
    return value->get<T>();
  }

  // Throws Error for the first key that was not used.
  void finish(std::string_view family) const {
    for (const auto& [key, value] : keys_.items()) {
      if (used_.contains(key) || value.is_null() || is_informational(key)) continue;
      std::vector<std::string> names(used_.begin(), used_.end());
      fail("hf",
           "{}: keys are those of {} that are built here, but got {} = {}{}: remove the key where "
           "the model is the same without it",
           path_, family, key, value.dump(), did_you_mean(key, names));
    }
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  json keys_;
  std::set<std::string> used_;
};

// The keys of one kind of rotary positions, beside its name and theta.
const std::vector<std::pair<const char*, std::vector<const char*>>>& rope_kinds() {
  static const std::vector<std::pair<const char*, std::vector<const char*>>> kinds = {
      {"default", {}},
      {"linear", {"factor"}},
      {"dynamic", {"factor"}},
      {"yarn",
       {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
        "mscale", "mscale_all_dim", "truncate"}},
      {"longrope",
       {"factor", "original_max_position_embeddings", "attention_factor", "short_factor",
        "long_factor"}},
      {"llama3",
       {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}}};
  return kinds;
}

// Reads rope_parameters, or rope_scaling and rope_theta of older configs.
void read_rope(Config& config, Architecture& a) {
  auto& rope = a.rope;
  const auto& now = config.take("rope_parameters");
  const auto& before = config.take("rope_scaling");
  const char* const key = before.is_object() ? "rope_scaling" : "rope_parameters";
  rope.theta = config.get<double>("rope_theta", a.family->theta);
  rope.original_positions = config.get<int64_t>("original_max_position_embeddings", 0);
  if (config.get<double>("partial_rotary_factor", 1.0) != 1) {
    config.wrong("partial_rotary_factor", "is 1 for {}", a.family->model_type);
  }
  const json scaling = before.is_object() ? before : now;
  const bool outside = rope.original_positions > 0;
  if (scaling.is_null()) return;
  if (!scaling.is_object()) config.wrong(key, "is an object");
  for (const char* name : {"type", "rope_type"}) {
    if (scaling.contains(name) && scaling[name].is_string()) rope.kind = scaling[name];
  }
  if (rope.kind == "su") rope.kind = "longrope";  // the name in the first configs
  const std::vector<const char*>* known = nullptr;
  std::vector<std::string> kinds;
  for (const auto& [kind, keys] : rope_kinds()) {
    kinds.emplace_back(kind);
    if (rope.kind == kind) known = &keys;
  }
  if (!known) config.wrong(key, "has a rope_type of {}", fmt::join(kinds, ", "));
  const auto number = [&](const char* name, double& to) {
    const auto at = scaling.find(name);
    if (at == scaling.end() || at->is_null()) return false;
    if (!at->is_number()) config.wrong(key, "has a number as {}", name);
    to = at->get<double>();
    return true;
  };
  for (const auto& [name, value] : scaling.items()) {
    const bool common = name == "type" || name == "rope_type" || name == "rope_theta" ||
                        (name == "partial_rotary_factor" && value == 1.0);
    const bool own = std::find(known->begin(), known->end(), name) != known->end();
    if (common || own || value.is_null()) continue;
    config.wrong(key, "of rope_type {} has no {}", rope.kind, name);
  }
  number("rope_theta", rope.theta);
  double original = 0;
  if (number("original_max_position_embeddings", original) && !outside) {
    rope.original_positions = static_cast<int64_t>(original);
  }
  const bool has_factor = number("factor", rope.factor);
  const bool derived = rope.kind == "yarn" || rope.kind == "longrope";
  if (!has_factor && derived && rope.original_positions > 0) {
    rope.factor = double(a.positions) / double(rope.original_positions);
  } else if (!has_factor && rope.kind != "default" && rope.kind != "longrope") {
    config.wrong(key, "of rope_type {} has a factor", rope.kind);
  }
  number("attention_factor", rope.attention_factor);
  number("beta_fast", rope.beta_fast);
  number("beta_slow", rope.beta_slow);
  number("mscale", rope.mscale);
  number("mscale_all_dim", rope.mscale_all_dim);
  if (scaling.contains("truncate")) rope.truncate = scaling["truncate"] != json(false);
  if (rope.kind == "llama3" && (!number("low_freq_factor", rope.low_freq_factor) ||
                                !number("high_freq_factor", rope.high_freq_factor))) {
    config.wrong(key, "of rope_type llama3 has low_freq_factor and high_freq_factor");
  }
  if (!(rope.factor > 0) || !(rope.theta > 0)) {
    config.wrong(key, "has a factor and a rope_theta above 0");
  }
  if (rope.kind == "longrope") {
    for (auto [name, list] : {std::pair{"short_factor", &rope.short_factor},
                              std::pair{"long_factor", &rope.long_factor}}) {
      const auto at = scaling.find(name);
      const bool fits = at != scaling.end() && at->is_array() &&
                        static_cast<int64_t>(at->size()) == a.head_size / 2 &&
                        std::all_of(at->begin(), at->end(),
                                    [](const json& n) { return n.is_number() && n > 0; });
      if (!fits) config.wrong(key, "has {} numbers above 0 as {}", a.head_size / 2, name);
      *list = at->get<std::vector<double>>();
    }
  }
}

// Reads the window of each layer.
void read_windows(Config& config, Architecture& a) {
  const auto& family = *a.family;
  a.windows.assign(static_cast<size_t>(a.layers), 0);
  if (family.windows == Windows::none) return;
  const bool listed = family.windows == Windows::listed;
  const bool use = !listed || config.get<bool>("use_sliding_window", false);
  const auto from = listed ? config.get<int64_t>("max_window_layers", 28) : 0;
  const auto& types = listed ? config.take("layer_types") : json();
  const auto window = use ? a.window : 0;
  if (types.is_null()) {
    for (auto i = from; i < a.layers; ++i) a.windows[static_cast<size_t>(i)] = window;
    return;
  }
  if (!types.is_array() || types.size() != a.windows.size()) {
    config.wrong("layer_types", "lists the {} layers", a.layers);
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] == "sliding_attention" && window > 0) {
      a.windows[i] = window;
    } else if (types[i] != "full_attention") {
      config.wrong("layer_types",
                   "has full_attention, or sliding_attention with a sliding_window that is used");
    }
  }
}

}  // namespace

Architecture read_architecture(const std::string& folder) {
  Config config(folder);
  Architecture a;
  std::vector<std::string> types;
  for (const auto& family : families()) types.emplace_back(family.model_type);
  const auto type = config.get<std::string>("model_type", "");
  a.family = find_family(type);
  if (!a.family) {
    config.wrong("model_type", "is one of {}", fmt::join(types, ", "));
  }
  const auto& family = *a.family;
  for (const auto& key : family.keys) {
    std::visit(
        [&](auto member) {
          using T = std::remove_reference_t<decltype(a.*member)>;
          a.*member = config.get<T>(key.name, key.fallback, key.of_null);
        },
        key.member);
  }
  for (const auto& [name, allowed] : family.fixed) {
    const auto& value = config.take(name);
    if (value.is_null() || std::find(allowed.begin(), allowed.end(), value) != allowed.end())
      continue;
    config.wrong(name, "is {} in a model that is built here", allowed.front().dump());
  }
  if (a.vocab < 1 || a.width < 1 || a.layers < 1 || a.heads < 1 || a.positions < 1) {
    fail("hf", "{}: sizes of a model are at least 1, but one is 0", config.path());
  }
  const char* const heads_key = family.rotary ? "num_attention_heads" : "n_head";
  if (a.kv_heads == 0) a.kv_heads = a.heads;
  if (a.head_size == 0) {
    if (a.width % a.heads != 0) {
      config.wrong(heads_key, "divides the width {}", a.width);
    }
    a.head_size = a.width / a.heads;
  }
  if (a.hidden == 0) a.hidden = 4 * a.width;  // GPT-2
  if (a.heads % a.kv_heads != 0) {
    config.wrong("num_key_value_heads", "divides num_attention_heads ({})", a.heads);
  }
  if (a.experts < a.top_k) {
    config.wrong("num_experts_per_tok", "is at most num_local_experts ({})", a.experts);
  }
  if (family.rotary) {
    if (a.head_size % 2 != 0 || a.head_size < 4) {
      config.wrong("head_dim", "is even and at least 4 for rotary positions ({} here)",
                   a.head_size);
    }
    read_rope(config, a);
  }
  read_windows(config, a);
  // Gemma's first configs say "gelu" for its approximation, which the models were trained with.
  if (family.norm_offset && a.activation == "gelu") a.activation = "gelu_pytorch_tanh";
  config.finish(family.model_type);
  return a;
}

}  // namespace perigee::hf
