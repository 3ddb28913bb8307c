#include "capture/exported/archive.h"

#include <ATen/ATen.h>
#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "base/text/depth.h"
#include "capture/exported/types.h"
#include "capture/exported/zip_records.h"

namespace perigee::exported {
namespace {

using caffe2::serialize::PyTorchStreamReader;
using nlohmann::json;

constexpr const char* kModels = "models/";
constexpr const char* kHint = "write it by torch.export.save of PyTorch 2.11 (runtime/export.py)";

class ArchiveReader {
 public:
  explicit ArchiveReader(const std::string& path) : path_(path), zip_(path) {}

  Archive read() {
    const auto name = model_name();
    Archive archive;
    archive.program = parsed(kModels + name + ".json");
    check_version(archive.program);
    archive.weights = tensors("data/weights/", name + "_weights_config.json");
    archive.constants = tensors("data/constants/", name + "_constants_config.json");
    return archive;
  }

 private:
  // Returns the name of the archive's one model.
  std::string model_name() {
    std::vector<std::string> names;
    bool legacy = false;
    for (const auto& record : zip_.getAllRecords()) {
      legacy = legacy || record.starts_with("serialized_exported_program");
      if (!record.starts_with(kModels) || !record.ends_with(".json")) continue;
      const auto begin = std::string(kModels).size();
      names.push_back(record.substr(begin, record.size() - begin - 5));
    }
    if (names.size() == 1) return names[0];
    if (names.size() > 1) {
      fail("capture", "\"{}\" must hold one model, but has {}: save each alone", path_,
           names.size());
    }
    fail("capture", "\"{}\" must be an archive of torch.export, but {}: {}", path_,
         legacy ? "an older PyTorch wrote it" : "it holds no models/NAME.json", kHint);
  }

  std::string bytes(const std::string& record) {
    if (!zip_.hasRecord(record)) {
      fail("capture", "\"{}\" must be a whole archive of torch.export, but has no {}", path_,
           record);
    }
    std::string text(zip_.getRecordSize(record), '\0');
    zip_.getRecord(record, text.data(), text.size());
    return text;
  }

  json parsed(const std::string& record) {
    try {
      const auto text = bytes(record);
      check_json_depth(text, "capture", path_);
      return json::parse(text);
    } catch (const json::exception& error) {
      fail("capture", "\"{}\" must hold JSON in {}, but: {}", path_, record, error.what());
    }
  }

  void check_version(const json& program) const {
    const auto version = program.value("schema_version", json::object());
    const auto major = integer_or(version, "major", 0), minor = integer_or(version, "minor", 0);
    if (major == kSchemaMajor && minor <= kSchemaMinor) return;
    fail("capture",
         "\"{}\" must have schema {}.0 to {}.{} of torch.export, but has {}.{} of "
         "PyTorch {}: {}",
         path_, kSchemaMajor, kSchemaMajor, kSchemaMinor, major, minor,
         program.value("torch_version", "unknown"), kHint);
  }

  std::map<std::string, StoredTensor> tensors(const std::string& folder, const std::string& list) {
    std::map<std::string, StoredTensor> tensors;
    std::map<std::string, at::Tensor> payloads;  // bytes, by record
    const auto entries = parsed(folder + list).at("config");
    for (const auto& [name, entry] : entries.items()) {
      if (entry.at("use_pickle").get<bool>()) {
        fail("capture",
             "an archive's tensors must be plain, but \"{}\" of \"{}\" is pickled (a subclass of "
             "torch.Tensor or an object), which would run code",
             name, path_);
      }
      const auto record = folder + entry.at("path_name").get<std::string>();
      auto& payload = payloads[record];
      if (!payload.defined()) payload = read_payload(record);
      const auto& meta = entry.at("tensor_meta");
      tensors[name] = {view(name, payload, meta), entry.at("is_param").get<bool>(),
                       meta.at("requires_grad").get<bool>()};
    }
    return tensors;
  }

  at::Tensor read_payload(const std::string& record) {
    if (!zip_.hasRecord(record)) {
      fail("capture", "\"{}\" must be a whole archive of torch.export, but has no {}", path_,
           record);
    }
    const auto size = static_cast<int64_t>(zip_.getRecordSize(record));
    auto payload = at::empty({size}, at::kByte);
    zip_.getRecord(record, payload.mutable_data_ptr(), payload.nbytes());
    return payload;
  }

  // Returns the tensor of the entry's type and strides in the payload's memory.
  at::Tensor view(const std::string& name, const at::Tensor& payload, const json& meta) const {
    const auto type = element_type(integer(meta.at("dtype")));
    layout(integer(meta.at("layout")));
    std::vector<int64_t> sizes, strides;
    for (const auto& size : meta.at("sizes")) sizes.push_back(integer(size.at("as_int")));
    for (const auto& stride : meta.at("strides")) strides.push_back(integer(stride.at("as_int")));
    const auto offset = integer(meta.at("storage_offset").at("as_int"));
    // Numbers of elements: of the tensor, and up to its last one.
    int64_t last = offset, numel = 1, step = 0;
    bool valid = offset >= 0 && sizes.size() == strides.size();
    for (size_t i = 0; valid && i < sizes.size(); ++i) {
      valid = sizes[i] >= 0 && strides[i] >= 0 &&
              !__builtin_mul_overflow(numel, std::max<int64_t>(1, sizes[i]), &numel) &&
              !__builtin_mul_overflow(std::max<int64_t>(0, sizes[i] - 1), strides[i], &step) &&
              !__builtin_add_overflow(last, step, &last);
    }
    const auto width = static_cast<int64_t>(c10::elementSize(type));
    const bool empty = std::ranges::find(sizes, 0) != sizes.end();
    if (!valid || (!empty && last >= payload.numel() / width)) {
      fail("capture", "a tensor lies within its bytes, but \"{}\" of \"{}\" has {} of them", name,
           path_, payload.numel());
    }
    auto tensor = at::empty({0}, at::dtype(type));
    tensor.set_(payload.storage(), offset, sizes, strides);
    return tensor;
  }

  const std::string& path_;
  PyTorchStreamReader zip_;
};

}  // namespace

Archive read_archive(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    fail("capture", "\"{}\" must be an archive of torch.export, but is a folder: {}", path, kHint);
  }
  check_records(path);
  try {
    return ArchiveReader(path).read();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (text.find("zip archive") != text.npos || text.find("not in a subdirectory") != text.npos) {
      fail("capture",
           "\"{}\" must be a whole archive of torch.export, but is cut short, damaged or another "
           "kind of file: {}",
           path, kHint);
    }
    fail("capture", "\"{}\" must be a whole archive of torch.export, but LibTorch says: {}", path,
         text.substr(0, text.find('\n')));
  } catch (const nlohmann::json::exception& error) {
    fail("capture", "\"{}\" must be an archive of torch.export, but its JSON is not: {}", path,
         error.what());
  }
}

}  // namespace perigee::exported
