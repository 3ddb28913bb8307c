#include "checkpoint/weights/weight_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/fail.h"
#include "base/files/file.h"
#include "base/text/depth.h"

namespace perigee::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kIndex = "model.safetensors.index.json";

// Returns the safetensors files of a folder, sorted.
std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  std::ranges::sort(files);
  return files;
}

// Returns the first five, and how many there are beyond them.
std::string some_of(const std::vector<std::string>& list) {
  const auto shown = std::min<size_t>(list.size(), 5);
  auto text = fmt::format("{}", fmt::join(list.begin(), list.begin() + shown, ", "));
  if (list.size() > shown) text += fmt::format(" and {} more", list.size() - shown);
  return text;
}

}  // namespace

bool WeightFiles::in_folder(const std::string& folder) {
  std::error_code ignored;
  return fs::exists(fs::path(folder) / kIndex, ignored) || !files_of(folder).empty();
}

WeightFiles::WeightFiles(const std::string& path) : path_(path) {
  std::error_code ignored;
  auto chosen = path;
  if (fs::is_directory(path, ignored)) {
    const auto files = files_of(path);
    chosen = (fs::path(path) / "model.safetensors").string();
    if (!fs::exists(chosen, ignored)) chosen = (fs::path(path) / kIndex).string();
    if (!fs::exists(chosen, ignored) && files.size() == 1) chosen = files.front();
    if (files.empty() && !fs::exists(chosen, ignored)) {
      fail("weights", "{} must have safetensors files, but has none", path);
    }
    if (!fs::exists(chosen, ignored)) {
      fail("weights",
           "a folder of weights has model.safetensors, {} or a single file, but {} has several: "
           "{}: name one",
           kIndex, path, some_of(files));
    }
  }
  if (chosen.ends_with(".json")) {
    open_index(chosen);
  } else {
    open_file(chosen);
  }
}

void WeightFiles::open_file(const std::string& path) {
  files_.push_back(std::make_unique<const SafetensorsFile>(path));
  for (const auto& tensor : files_.back()->tensors()) tensors_[tensor.name] = &tensor;
}

void WeightFiles::open_index(const std::string& path) {
  const auto text = read_file(path, "weights");
  check_json_depth(text, "weights", path);
  const auto index = json::parse(text, nullptr, false);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object()) {
    fail("weights", "{} must hold a JSON object with an object \"weight_map\", but does not", path);
  }
  std::map<std::string, std::vector<std::string>> by_file;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() ||
        fs::path(file.get<std::string>()).filename() != file.get<std::string>()) {
      fail("weights", "{} names a file of its folder for each tensor, but has {} for {}", path,
           file.dump(), name);
    }
    by_file[file].push_back(name);
  }
  const auto folder = fs::path(path).parent_path();
  std::vector<std::string> missing;
  std::error_code ignored;
  for (const auto& [file, names] : by_file) {
    if (!fs::exists(folder / file, ignored)) missing.push_back(file);
  }
  if (!missing.empty()) {
    fail("weights", "the files that {} names must lie beside it, but {} of {} are missing: {}",
         path, missing.size(), by_file.size(), some_of(missing));
  }
  for (const auto& [file, names] : by_file) {
    files_.push_back(std::make_unique<const SafetensorsFile>((folder / file).string()));
    for (const auto& name : names) {
      const auto* tensor = files_.back()->find(name);
      if (!tensor) {
        fail("weights", "{} names {} for {}, but that file has no such tensor", path, file, name);
      }
      tensors_[name] = tensor;
    }
  }
}

const TensorBytes* WeightFiles::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

std::vector<std::string> WeightFiles::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

}  // namespace perigee::checkpoint
