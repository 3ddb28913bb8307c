// Defaults that follow from other keys, and checks of combinations of keys.
#include "job/complete.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/fail.h"
#include "job/keys.h"
#include "job/model_kinds.h"
#include "job/optimizer_options.h"
#include "job/step_list.h"

namespace perigee::job {
namespace {

constexpr std::string_view kS3 = "s3://";

class Completer {
 public:
  Completer(Job& job, const Where& where) : job_(job), where_(where) {}

  void run() {
    check_kind();
    check_keys();
    top();
    model();
    complete_data(job_, where_);
    early_stop();
    optimizer();
    schedule();
    warnings();
  }

 private:
  // Throws Error with the place of the key before the message.
  template <class... Args>
  [[noreturn]] void wrong(std::string_view key, fmt::format_string<Args...> format,
                          Args&&... args) const {
    fail("job", "{}{}", where_(key), fmt::format(format, std::forward<Args>(args)...));
  }

  // Sets one of the kind's integers where it is not given.
  void fill(std::string_view key, int64_t value) {
    const auto found = job_.model.values.find(std::string(key));
    if (found == job_.model.values.end()) return;
    if (std::get<int64_t>(found->second) == 0) found->second = value;
  }

  bool has(std::string_view key) const { return job_.model.values.contains(std::string(key)); }

  void check_kind() {
    const auto& kind = job_.model.kind;
    if (!kind.empty()) {
      ListEntry unused;
      const JobKey& key = *find_key("model", "kind", "");
      check(key, ref(key, job_, unused), where_("model.kind"));
    }
    for (const auto& [name, value] : job_.model.values) {
      const JobKey* own = find_key("model", name, kind);
      if (own && !own->kinds.empty()) continue;
      if (kind.empty()) wrong("model", "model.{} needs a model.kind, but got none", name);
      wrong("model", "{} has no key \"{}\"", kind, name);
    }
    const bool options = !kind.empty() && model_kind(kind).options;
    if (!options && !job_.model.options.empty()) {
      wrong("model.options",
            "model.options belongs to the kinds plugin and lua, but the kind is {}",
            kind.empty() ? "not given" : kind);
    }
  }

  void check_keys() {
    ListEntry unused;
    for (const auto& key : keys()) {
      if (is_list(key.table)) continue;
      if (!key.kinds.empty() && find_key("model", key.name, job_.model.kind) != &key) continue;
      const Ref value = ref(key, job_, unused);
      if (key.otherwise.empty() || !is_initial(key, job_, unused)) {
        check(key, value, where_(key.path()));
      }
    }
    for (auto& group : job_.optimizer.groups) {
      ListEntry entry{.group = group};
      for (const auto& key : keys()) {
        if (key.table == "optimizer.group") check(key, ref(key, job_, entry), where_(key.path()));
      }
      if (group.match.empty()) {
        wrong("optimizer.group", "optimizer.group.match names parameters, but got none");
      }
    }
  }

  void bad_steps() {
    const auto& train = job_.train;
    try {
      parse_steps(train.skip_steps);
    } catch (const Error&) {
      wrong("train.skip_steps",
            "train.skip_steps lists steps from 1, \"12, 40-45\", but got \"{}\"", train.skip_steps);
    }
    if (train.on_spike == "skip" && train.skip_bad_steps == 0) {
      wrong("train.on_spike",
            "train.on_spike = \"skip\" skips at most train.skip_bad_steps steps in a row, but that "
            "is 0");
    }
    if (train.on_spike != "warn" && train.spike_loss == 0 && train.spike_norm == 0) {
      wrong("train.on_spike",
            "train.on_spike = \"{}\" needs train.spike_loss or train.spike_norm above 0, but both "
            "are 0",
            train.on_spike);
    }
  }

  void early_stop() {
    const auto& train = job_.train;
    const bool wanted = train.early_stop_patience > 0 || train.keep_best;
    if (wanted && (train.validate_every == 0 || job_.data.validation == 0)) {
      wrong(train.keep_best ? "train.keep_best" : "train.early_stop_patience",
            "train.early_stop_patience and train.keep_best compare validation losses, but {} is 0",
            train.validate_every == 0 ? "train.validate_every" : "data.validation");
    }
    if (train.early_stop_min_delta > 0 && train.early_stop_patience == 0) {
      wrong("train.early_stop_min_delta",
            "train.early_stop_min_delta requires train.early_stop_patience, but that is 0");
    }
  }

  void top() {
    auto& job = job_;
    if (job.name.empty()) job.name = "job";
    if (job.name.find('/') != std::string::npos || job.name[0] == '.') {
      wrong("name",
            "name is a file name without \"/\" that does not start with \".\", but got \"{}\"",
            job.name);
    }
    if (job.train.output.empty()) job.train.output = "runs/" + job.name;
    if (job.train.output.starts_with(kS3)) {
      wrong("train.output",
            "train.output is a folder, but got \"{}\": a service takes checkpoints, by "
            "train.checkpoint_target",
            job.train.output);
    }
    auto& target = job.train.checkpoint_target;
    while (target.ends_with('/')) target.pop_back();
    if (!target.empty() && (!target.starts_with(kS3) || target[kS3.size()] == '/')) {
      wrong("train.checkpoint_target",
            "train.checkpoint_target is s3://BUCKET/PREFIX, but got \"{}\": a folder is named by "
            "train.output",
            target);
    }
    if (job.strategy.ends_with(".lua")) need_file("strategy", job.strategy);
    if (!job.dialect.name.empty() && job.strategy != "auto") {
      wrong("strategy", "a job has a strategy or a dialect's table, but got both \"{}\" and [{}]",
            job.strategy, job.dialect.name);
    }
    if (job.train.forward_only && job.train.check_gradients) {
      wrong("train.check_gradients",
            "train.check_gradients needs gradients, but train.forward_only leaves them out");
    }
    const bool tolerance = job.train.check_rtol || job.train.check_atol;
    if (tolerance && !job.train.check_gradients) {
      wrong(
          job.train.check_rtol ? "train.check_rtol" : "train.check_atol",
          "train.check_rtol and train.check_atol are tolerances of train.check_gradients, but that "
          "is false");
    }
    bad_steps();
    if (!job.cluster.file.empty()) need_file("cluster.file", job.cluster.file);
    if (!job.train.weights.empty()) need_file("train.weights", job.train.weights);
    if (!job.train.adapter.empty()) need_file("train.adapter", job.train.adapter);
    try {
      devices_of(job.cluster);
    } catch (const Error& error) {
      wrong("cluster.devices", "{}", std::string_view(error.what()).substr(6));
    }
    const auto& profile = job.cluster.profile;  // a file that is no profile would be overwritten
    if (!profile.empty() && !profile.ends_with(".sqlite")) {
      wrong("cluster.profile", "cluster.profile names a file NAME.sqlite, but got \"{}\"", profile);
    }
    const auto& [global, micro, round] = job.batch;
    if (micro > 0 && global % micro != 0 && !round) {
      wrong("batch.micro", "batch.micro divides batch.global ({}), but got {}", global, micro);
    }
  }

  void need_file(std::string_view key, const std::string& path) const {
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) {
      wrong(key, "{} names a file, but there is no \"{}\"", key, path);
    }
  }

  void model() {
    auto& m = job_.model;
    if (has("file")) {
      if (m.text("file").empty()) {
        wrong("model", "model.file is needed for the kind {}, but got none", m.kind);
      }
      need_file("model.file", m.text("file"));
    }
    if (!m.around.empty()) need_file("model.around", m.around);
    for (const auto& pattern : m.frozen) {
      if (pattern.empty()) wrong("model.frozen", "model.frozen names parameters, but got \"\"");
    }
    if (m.kind == "hf") hugging_face();
    if (job_.data.tokenizer == "bytes" && m.kind != "hf") fill("vocab", 256);
    fill("positions", job_.data.sequence);
    if (has("positions") && m.integer("positions") < job_.data.sequence) {
      wrong("model.positions", "model.positions is at least data.sequence ({}), but got {}",
            job_.data.sequence, m.integer("positions"));
    }
    if (has("heads")) heads();
    if (has("experts") && m.integer("top_k") > m.integer("experts")) {
      wrong("model.top_k", "model.top_k is at most model.experts ({}), but got {}",
            m.integer("experts"), m.integer("top_k"));
    }
  }

  // The folder's weights are the first values.
  void hugging_face() {
    const auto& folder = job_.model.text("folder");
    if (folder.empty()) wrong("model", "model.folder is needed for the kind hf, but got none");
    std::error_code ignored;
    const auto config = std::filesystem::path(folder) / "config.json";
    if (!std::filesystem::exists(config, ignored)) {
      wrong("model.folder", "model.folder has a config.json, but there is no \"{}\"",
            config.string());
    }
    if (!job_.train.weights.empty()) return;
    for (const auto& file : std::filesystem::directory_iterator(folder, ignored)) {
      if (file.path().extension() == ".safetensors") job_.train.weights = folder;
    }
  }

  void heads() {
    const auto& m = job_.model;
    const int64_t width = m.integer("width"), heads = m.integer("heads");
    if (width % heads != 0) {
      wrong("model.heads", "model.heads divides model.width ({}), but got {}", width, heads);
    }
    fill("hidden", m.kind == "llama" ? (width * 8 / 3 + 31) / 32 * 32 : 4 * width);
    if (m.kind != "llama") return;
    fill("kv_heads", heads);
    if (heads % m.integer("kv_heads") != 0) {
      wrong("model.kv_heads", "model.kv_heads divides model.heads ({}), but got {}", heads,
            m.integer("kv_heads"));
    }
    if (width / heads % 2 != 0) {
      wrong("model.heads", "the size of a head (model.width / model.heads) is even, but got {}",
            width / heads);
    }
  }

  void optimizer() {
    auto& o = job_.optimizer;
    for (const auto& key : keys()) {
      if (key.table != "optimizer" || key.field || !is_initial(key, job_, {})) continue;
      o.options[key.name] = option_default(o.name, key.name);
    }
    const auto attributes = attributes_of(o);
    const auto& optimizer = *optim::find_optimizer(o.name);
    for (const auto& a : optimizer.attributes) {
      if (!a.needs || attributes.at(a.name) == 0) continue;
      if (attributes.at(a.needs) != 0 && attributes.at(a.excludes) == 0) continue;
      wrong(fmt::format("optimizer.{}", a.name),
            "optimizer.{} needs {} and no {}, but got {} {} and {} {}", a.name, a.needs, a.excludes,
            a.needs, attributes.at(a.needs), a.excludes, attributes.at(a.excludes));
    }
    for (const auto& group : o.groups) {
      if (group.name.empty() || !optimizer.others.empty()) continue;
      const auto& split = *std::ranges::find_if(optim::optimizers(),
                                                [](const auto& d) { return !d.others.empty(); });
      wrong("optimizer.group",
            "optimizer.group.name chooses between {} and {} where optimizer.name is {}, but that "
            "is {}",
            split.name, split.others, split.name, o.name);
    }
  }

  void schedule() {
    auto& s = job_.lr_schedule;
    const int64_t steps = s.steps > 0 ? s.steps : job_.train.steps;
    const auto* const all = s.steps > 0 ? "lr_schedule.steps" : "train.steps";
    const int64_t tenth = steps / 10;
    if (s.warmup < 0) s.warmup = std::min<int64_t>(20, tenth);
    if (s.min_lr < 0 && s.kind != "constant") s.min_lr = job_.optimizer.lr / 10;
    if (s.decay == 0 && s.kind == "wsd")
      s.decay = std::max<int64_t>(1, std::min(tenth, steps - s.warmup));
    if (s.warmup > steps) {
      wrong("lr_schedule.warmup", "lr_schedule.warmup is at most {} ({}), but got {}", all, steps,
            s.warmup);
    }
    if (s.kind == "wsd" && s.decay > steps - s.warmup) {
      wrong("lr_schedule.decay",
            "lr_schedule.decay is at most {} - lr_schedule.warmup ({}), but got {}", all,
            steps - s.warmup, s.decay);
    }
    if (s.init_lr > job_.optimizer.lr) {
      wrong("lr_schedule.init_lr", "lr_schedule.init_lr is at most optimizer.lr ({}), but got {}",
            job_.optimizer.lr, s.init_lr);
    }
    if (s.min_lr > job_.optimizer.lr) {
      wrong("lr_schedule.min_lr", "lr_schedule.min_lr is at most optimizer.lr ({}), but got {}",
            job_.optimizer.lr, s.min_lr);
    }
  }

  void warnings() {
    ListEntry unused;
    auto& sentences = job_.warnings.sentences;
    sentences.clear();
    for (const auto& key : keys()) {
      if (!key.needs.holds || key.needs.holds(job_)) continue;
      const bool is_default = key.field ? is_initial(key, job_, unused)
                                        : job_.optimizer.options.at(key.name) ==
                                              option_default(job_.optimizer.name, key.name);
      if (is_default) continue;
      sentences.push_back(fmt::format("{}{} has no effect: it needs {}", where_(key.path()),
                                      key.path(), key.needs.text));
    }
    if (job_.model.kind != "hf" || !job_.train.weights.empty()) return;
    for (const auto* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
      const auto file = std::filesystem::path(job_.model.text("folder")) / name;
      std::error_code ignored;
      if (!std::filesystem::exists(file, ignored)) continue;
      sentences.push_back(
          fmt::format("{}{} is not read: save the model as safetensors files (transformers: "
                      "save_pretrained)",
                      where_("model.folder"), file.string()));
    }
  }

  Job& job_;
  const Where& where_;
};

template <class T>
const T& own_value(const ModelConfig& model, std::string_view key) {
  const auto found = model.values.find(std::string(key));
  if (found == model.values.end() || !std::holds_alternative<T>(found->second)) {
    fail("job", "the model kind \"{}\" has no such key, but got \"{}\"", model.kind, key);
  }
  return std::get<T>(found->second);
}

}  // namespace

bool DataConfig::is_batched(std::string_view input) const {
  const auto& names = batched_names.empty() ? batched : batched_names;
  return names.empty() || std::ranges::find(names, input) != names.end();
}

void Job::require_model(const std::string& file) const {
  if (!model.kind.empty()) return;
  fail("job", "{}: model.kind is needed (one of {}), but got none", file, fmt::join(kinds(), ", "));
}

bool ModelConfig::flag(std::string_view key) const { return own_value<bool>(*this, key); }
int64_t ModelConfig::integer(std::string_view key) const { return own_value<int64_t>(*this, key); }
double ModelConfig::number(std::string_view key) const { return own_value<double>(*this, key); }
const std::string& ModelConfig::text(std::string_view key) const {
  return own_value<std::string>(*this, key);
}

std::vector<int64_t> devices_of(const ClusterConfig& cluster) {
  std::vector<int64_t> devices;
  const auto refuse = [&] {
    fail("job", "cluster.devices lists different GPUs by their numbers, \"0,2\", but got \"{}\"",
         cluster.devices);
  };
  std::string_view rest = cluster.devices;
  while (!rest.empty()) {
    const auto comma = rest.find(',');
    auto number = rest.substr(0, comma);
    while (number.starts_with(' ')) number.remove_prefix(1);
    while (number.ends_with(' ')) number.remove_suffix(1);
    int64_t device = -1;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), device);
    if (error != std::errc() || end != number.data() + number.size() || device < 0 ||
        std::ranges::find(devices, device) != devices.end() || comma + 1 == rest.size()) {
      refuse();
    }
    devices.push_back(device);
    rest = comma == rest.npos ? std::string_view() : rest.substr(comma + 1);
  }
  return devices;
}

void complete(Job& job, const Where& where) { Completer(job, where).run(); }

void Job::complete() {
  job::complete(*this, [](std::string_view) { return ""; });
}

}  // namespace perigee::job
