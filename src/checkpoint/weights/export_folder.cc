#include "checkpoint/weights/export_folder.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "base/files/durable.h"
#include "base/files/file.h"
#include "capture/models/hf/names.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weights/form.h"
#include "checkpoint/weights/merge.h"
#include "checkpoint/weights/new_folder.h"
#include "checkpoint/weights/weight_files.h"
#include "exec/tensor.h"

namespace perigee::checkpoint {
namespace fs = std::filesystem;

namespace {

using hf::Form;

// A tensor of the files: the whole tensor `ours` of the model, or one expert's.
struct Entry {
  TensorBytes tensor;  // without bytes
  std::string ours;
  Form form = Form::same;
  int64_t expert = 0;
};

int64_t bytes_of(const TensorBytes& tensor) {
  auto bytes = static_cast<int64_t>(graph::size_of(tensor.dtype));
  for (const auto size : tensor.shape) bytes *= size;
  return bytes;
}

// Returns the files' tensors, sorted by name.
std::vector<Entry> entries_of(const Checkpoint& checkpoint, const hf::Names& names,
                              const WeightFiles* source, const FolderOptions& options) {
  std::vector<Entry> entries;
  // The folder of a model without its head has no prefixes.
  bool with_prefix = !source;
  for (const auto& tensor : checkpoint.tensors()) {
    if (!tensor.weight || is_of_adapter(options.adapters, tensor.name)) continue;
    const auto stored = names.find(tensor.name, tensor.shape.empty() ? 0 : tensor.shape[0]);
    if (!stored) {
      fail("export", "the tensors of a run of {} have names in its files, but {} has none",
           names.family().model_type, tensor.name);
    }
    auto shape = tensor.shape;
    if (stored->form == Form::experts_transposed) shape.erase(shape.begin());
    shape = shape_in_model(shape, stored->form);
    for (size_t e = 0; e < stored->names.size(); ++e) {
      const auto& name = stored->names[e];
      with_prefix = with_prefix || source->find(name);
      entries.push_back(
          {{name, tensor.dtype, shape, {}}, tensor.name, stored->form, static_cast<int64_t>(e)});
    }
  }
  for (auto& entry : entries) {
    auto& [name, dtype, shape, bytes] = entry.tensor;
    if (!with_prefix) name = names.without_prefix(name);
    const auto* before = source ? source->find(name) : nullptr;
    if (options.dtype) {
      dtype = *options.dtype;
    } else if (before) {
      dtype = before->dtype;
    }
  }
  std::ranges::sort(entries, {}, [](const Entry& entry) { return entry.tensor.name; });
  return entries;
}

// Reads a tensor of the files from the checkpoint.
at::Tensor read_entry(const Checkpoint& checkpoint, const Entry& entry, int64_t heads,
                      const std::optional<graph::Adapters>& adapters) {
  const auto& stored = *checkpoint.find(entry.ours);
  const auto dtype = exec::scalar_type(entry.tensor.dtype);
  if (entry.form != Form::experts_transposed) {
    return as_stored(read_merged(checkpoint, stored, adapters), entry.form, heads).to(dtype);
  }
  TensorPart part{stored.name, stored.dtype, stored.shape, {}};
  for (const auto size : part.shape) part.ranges.push_back({0, size});
  part.ranges[0] = {entry.expert, 1};
  const std::vector<int64_t> shape(part.shape.begin() + 1, part.shape.end());
  const auto whole = at::empty(shape, exec::scalar_type(stored.dtype));
  checkpoint.read(part, {static_cast<std::byte*>(whole.data_ptr()), whole.nbytes()});
  return as_stored(whole, entry.form, heads).to(dtype);
}

// Divides the tensors into files of at most that many bytes.
std::vector<std::vector<Entry>> shards_of(std::vector<Entry> entries, int64_t most) {
  std::vector<std::vector<Entry>> shards(1);
  int64_t held = 0;
  for (auto& entry : entries) {
    const auto bytes = bytes_of(entry.tensor);
    if (held > 0 && held + bytes > most) {
      shards.emplace_back();
      held = 0;
    }
    held += bytes;
    shards.back().push_back(std::move(entry));
  }
  return shards;
}

// Copies config.json and files of tokenizers.
void copy_small_files(const fs::path& from, const fs::path& to, const FolderOptions& options) {
  auto config = nlohmann::ordered_json::parse(read_file((from / "config.json").string(), "export"));
  if (options.dtype) {
    config.erase("torch_dtype");
    config["dtype"] = graph::name_of(*options.dtype);
    write_durably((to / "config.json").string(), config.dump(2) + "\n");
  }
  for (const auto& entry : fs::directory_iterator(from)) {
    const auto name = entry.path().filename();
    const auto ending = name.extension();
    const bool small = ending == ".json" || ending == ".model" || ending == ".txt" ||
                       ending == ".jinja";
    if (!small || !entry.is_regular_file() || name.string().ends_with(".index.json")) continue;
    if (name == "config.json" && options.dtype) continue;
    write_durably((to / name).string(), read_file(entry.path().string(), "export"));
  }
}

void write_files(const Checkpoint& checkpoint, const std::vector<std::vector<Entry>>& shards,
                 const fs::path& to, int64_t heads,
                 const std::optional<graph::Adapters>& adapters) {
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  int64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto name = shards.size() == 1
                          ? std::string("model.safetensors")
                          : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    std::vector<TensorBytes> tensors;
    for (const auto& entry : shards[i]) {
      tensors.push_back(entry.tensor);
      map[entry.tensor.name] = name;
      total += bytes_of(entry.tensor);
    }
    at::Tensor held;
    const auto read = [&](size_t k) -> std::span<const std::byte> {
      held = read_entry(checkpoint, shards[i][k], heads, adapters);
      return {static_cast<const std::byte*>(held.data_ptr()), held.nbytes()};
    };
    write_safetensors(*folder_target(), (to / name).string(), tensors, read, {{"format", "pt"}});
  }
  if (shards.size() == 1) return;
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  write_durably((to / "model.safetensors.index.json").string(), index.dump(2) + "\n");
}

}  // namespace

void export_folder(const Checkpoint& checkpoint, const job::ModelConfig& model,
                   const FolderOptions& options) {
  if (model.kind != "hf") {
    fail("export",
         "--hf writes runs with model.kind = \"hf\", but this one is of the kind {}: use -o FILE",
         model.kind);
  }
  const auto names = *hf::names_of(model);
  const auto& folder = model.text("folder");
  std::optional<WeightFiles> source;
  if (WeightFiles::in_folder(folder)) source.emplace(folder);
  const auto entries = entries_of(checkpoint, names, source ? &*source : nullptr, options);
  write_new_folder(options.folder, "--hf", [&](const std::string& to) {
    copy_small_files(folder, to, options);
    write_files(checkpoint, shards_of(entries, options.shard_bytes), to, names.heads(),
                options.adapters);
  });
}

namespace {

// Returns a table of a job as text, with its title, or "" where the job lacks it.
std::string table_of(const std::string& job, const std::string& title) {
  const auto begin = job.find("\n[" + title + "]");
  if (begin == std::string::npos) return "";
  return job.substr(begin, job.find("\n[", begin + 1) - begin);
}

}  // namespace

job::ModelConfig model_of_run(const std::string& run) {
  const auto path = inside(run, "job.toml");
  const auto text = "\n" + read_text(path);
  auto tables = table_of(text, "model");
  if (tables.empty()) fail("export", "{} must have a table [model], but has none", path);
  // The length of a sample limits `positions`.
  const auto data = table_of(text, "data");
  if (const auto line = data.find("\nsequence = "); line != std::string::npos) {
    tables += "\n[data]" + data.substr(line, data.find('\n', line + 1) - line) + "\n";
  }
  return job::Job::parse(tables, path).model;
}

}  // namespace perigee::checkpoint
