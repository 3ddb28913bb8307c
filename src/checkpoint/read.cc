#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "base/files/durable.h"
#include "base/text/depth.h"
#include "checkpoint/blocks.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/files.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/stored_file.h"
#include "checkpoint/target.h"

namespace perigee::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

struct IndexedFile {
  std::string name;
  uint64_t bytes = 0;
  std::string checksum;
  std::unique_ptr<StoredFile> opened;  // has these bytes; a local one also this checksum
};

struct StoredPiece {
  std::string file;
  std::string key;
  std::vector<Range> ranges;
  std::string checksum;  // "": the index has none
};

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace

struct Checkpoint::Impl {
  std::string folder;
  CheckpointInfo info;
  std::vector<StoredTensor> tensors;
  std::map<std::string, std::vector<StoredPiece>, std::less<>> pieces;
  std::map<std::string, IndexedFile> files;
  std::unique_ptr<Target> target;

  // Throws Error with the remedy.
  [[noreturn]] void damaged(const std::string& file, std::string_view tensor,
                            std::string_view why) const {
    std::string remedy = "start the run again with --overwrite";
    for (const auto& other : step_folders(run_of(folder))) {
      if (other.complete && !is_same_folder(other.path, folder)) {
        remedy = "resume from another checkpoint, --resume " + other.path;
      }
    }
    fail("checkpoint", "{} must be as it was written, but {}{}: copy it again, or {}",
         inside(folder, file), why, tensor.empty() ? "" : fmt::format(" (read for {})", tensor),
         remedy);
  }

  void load() {
    const auto mark = inside(folder, kComplete), path = inside(folder, "index.json");
    if (target->is_local() ? !target->has_folder(folder) : target->list(folder).empty()) {
      fail("checkpoint", "a checkpoint is a folder, but there is no folder {}", folder);
    }
    if (!target->size(mark)) {
      fail("checkpoint",
           "{} must be a complete checkpoint, but it lacks the mark COMPLETE: the run ended while "
           "it was written; resume from an earlier one",
           folder);
    }
    if (!target->size(path)) damaged("index.json", "", "it is missing");
    const auto text = target->read_all(path);
    if (target->read_all(mark) != checksum_of(text) + "\n") {
      damaged("index.json", "", "its checksum differs");
    }
    check_json_depth(text, "checkpoint", path);
    try {
      parse(json::parse(text));
    } catch (const json::exception& error) {
      damaged("index.json", "", error.what());
    }
  }

  static constexpr int64_t kMost = int64_t{1} << 60;  // of sizes: sums of two do not overflow

  // Returns the value, a whole number from 0 to kMost.
  int64_t number(const json& value) const {
    if (value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{kMost}) {
      return value.get<int64_t>();
    }
    damaged("index.json", "", "it has a size or step that is no whole number");
  }

  // Throws Error where the tensor or a piece of it cannot be as the index says.
  void check_sizes(const StoredTensor& tensor, int64_t stored_bytes) const {
    auto bytes = static_cast<int64_t>(graph::size_of(tensor.dtype));
    for (const auto size : tensor.shape) {
      if (__builtin_mul_overflow(bytes, std::max<int64_t>(1, size), &bytes)) bytes = INT64_MAX;
    }
    const bool empty = std::ranges::find(tensor.shape, 0) != tensor.shape.end();
    if (bytes > stored_bytes && !(empty && bytes < INT64_MAX)) {
      damaged("index.json", tensor.name, "the tensor is larger than all files");
    }
    const auto found = pieces.find(tensor.name);
    for (const auto& piece : found == pieces.end() ? std::vector<StoredPiece>() : found->second) {
      for (size_t d = 0; d < tensor.shape.size(); ++d) {
        if (piece.ranges[d].begin + piece.ranges[d].length <= tensor.shape[d]) continue;
        damaged("index.json", tensor.name, "a piece lies outside of the tensor");
      }
    }
  }

  void parse(const json& index) {
    const std::string format = index.at("format");
    if (format != kCheckpointFormat) {
      fail("checkpoint", "{} must have the format {}, but has {}: it is of another version", folder,
           kCheckpointFormat, format);
    }
    info.step = number(index.at("step"));
    info.samples = number(index.at("samples"));
    info.plan_hash = index.at("plan");
    info.state = index.at("state").dump();
    for (const auto& file : index.at("files")) {
      const std::string name = file.at("name");
      if (name.empty() || name == "." || name == ".." || fs::path(name).filename() != name) {
        damaged("index.json", "", "it names a file outside its folder, \"" + name + "\"");
      }
      const auto bytes = number(file.at("bytes"));
      files[name] = {name, static_cast<uint64_t>(bytes), file.at("xxh3_128"), nullptr};
    }
    int64_t stored_bytes = 0;
    for (const auto& [name, file] : files) {
      stored_bytes = std::min(stored_bytes + static_cast<int64_t>(file.bytes), kMost);
    }
    if (!index.at("tensors").is_object()) damaged("index.json", "", "its tensors have no names");
    for (const auto& [name, tensor] : index.at("tensors").items()) {
      const auto dtype = graph::dtype_of(tensor.at("dtype").get<std::string>());
      if (!dtype) damaged("index.json", name, "its dtype is unknown");
      std::vector<int64_t> shape;
      for (const auto& size : tensor.at("shape")) shape.push_back(number(size));
      tensors.push_back({name, *dtype, std::move(shape), tensor.at("weight")});
      for (const auto& piece : tensor.at("pieces")) {
        StoredPiece stored{piece.at("file"), piece.at("key"), {}, piece.value("xxh3_128", "")};
        for (size_t d = 0; d < tensors.back().shape.size(); ++d) {
          stored.ranges.push_back(
              {number(piece.at("begin").at(d)), number(piece.at("shape").at(d))});
        }
        pieces[name].push_back(std::move(stored));
      }
      check_sizes(tensors.back(), stored_bytes);
    }
  }

  StoredFile& open(const std::string& name, std::string_view tensor) {
    const auto found = files.find(name);
    if (found == files.end()) damaged("index.json", tensor, "it lacks " + name);
    auto& file = found->second;
    if (file.opened) return *file.opened;
    const auto path = inside(folder, name);
    const auto bytes = target->size(path);
    if (!bytes) damaged(name, tensor, "it cannot be read (No such file or directory)");
    if (*bytes != file.bytes) {
      damaged(name, tensor, fmt::format("it has {} bytes instead of {}", *bytes, file.bytes));
    }
    std::unique_ptr<StoredFile> opened;
    try {
      opened = open_stored(*target, path, file.bytes);
    } catch (const Error& why) {
      if (why.status() == Status::failed) throw;  // the service does not answer
      damaged(name, tensor, why.what());
    }
    if (opened->is_checked()) check(file, *opened, tensor);
    file.opened = std::move(opened);
    return *file.opened;
  }

  void check(const IndexedFile& file, StoredFile& opened, std::string_view tensor) const {
    if (opened.checksum() != file.checksum) damaged(file.name, tensor, "its checksum differs");
  }

  // Copies the elements that a piece and the part share. Returns their number.
  int64_t copy(const StoredPiece& piece, const TensorPart& part, std::span<std::byte> out) {
    const auto shared = shared_ranges(piece.ranges, part.ranges);
    if (count_of(shared) == 0) return 0;
    const auto size = graph::size_of(part.dtype);
    auto& file = open(piece.file, part.name);
    const auto bytes = static_cast<uint64_t>(count_of(piece.ranges)) * size;
    if (file.bytes_of(piece.key) != bytes) {
      damaged(piece.file, part.name, "its contents differ from the index");
    }
    // A piece that is read whole, from its first byte to its last, is compared with its checksum.
    const bool checks = !file.is_checked() && shared == piece.ranges && !piece.checksum.empty();
    Checksum checksum;
    const auto most = file.most_bytes() == 0 ? std::numeric_limits<int64_t>::max()
                                             : static_cast<int64_t>(file.most_bytes() / size);
    split(shared, piece.ranges, most, [&](std::span<const Range> block) {
      const auto read = file.read(piece.key, position_in(block, piece.ranges) * size,
                                  span_in(block, piece.ranges) * size);
      if (checks) checksum.add(read);
      copy_shared(block, piece.ranges, read.data(), part.ranges, out.data(), size);
    });
    if (checks && checksum.text() != piece.checksum) {
      damaged(piece.file, part.name, "its checksum differs");
    }
    return count_of(shared);
  }
};

Checkpoint::Checkpoint(const std::string& folder) : impl_(std::make_shared<Impl>()) {
  impl_->folder = folder;
  impl_->target = open_target(folder);
  impl_->load();
}

const std::string& Checkpoint::folder() const { return impl_->folder; }
const CheckpointInfo& Checkpoint::info() const { return impl_->info; }
const std::vector<StoredTensor>& Checkpoint::tensors() const { return impl_->tensors; }

const StoredTensor* Checkpoint::find(std::string_view name) const {
  const auto found = std::lower_bound(
      impl_->tensors.begin(), impl_->tensors.end(), name,
      [](const StoredTensor& tensor, std::string_view n) { return tensor.name < n; });
  return found == impl_->tensors.end() || found->name != name ? nullptr : &*found;
}

void Checkpoint::require(const TensorPart& part) const {
  if (std::ranges::find(part.shape, 0) != part.shape.end()) return;  // is not stored
  const auto* tensor = find(part.name);
  if (!tensor) {
    std::vector<std::string> names;
    for (const auto& known : impl_->tensors) names.push_back(known.name);
    fail("checkpoint",
         "checkpoint {} must hold {}, but it has no such tensor{}: it is of another model or "
         "optimizer",
         impl_->folder, part.name, did_you_mean(part.name, names));
  }
  if (tensor->dtype != part.dtype || tensor->shape != part.shape) {
    fail("checkpoint",
         "{} of checkpoint {} must be {}{} as in this job, but it is {}{}: it is of another model",
         part.name, impl_->folder, graph::name_of(part.dtype), shape_text(part.shape),
         graph::name_of(tensor->dtype), shape_text(tensor->shape));
  }
}

void Checkpoint::read(const TensorPart& part, std::span<std::byte> out) const {
  if (std::ranges::find(part.shape, 0) != part.shape.end()) return;  // is not stored
  require(part);
  const auto size = graph::size_of(part.dtype);
  const auto wanted = count_of(part.ranges);
  if (out.size() != static_cast<size_t>(wanted) * size) {
    fail_run("checkpoint", "the memory for {} must have {} bytes, but has {}", part.name,
             wanted * static_cast<int64_t>(size), out.size());
  }
  int64_t copied = 0;
  for (const auto& piece : impl_->pieces[part.name]) copied += impl_->copy(piece, part, out);
  if (copied != wanted)
    impl_->damaged("index.json", part.name, "its pieces do not cover the tensor");
}

void Checkpoint::verify() const {
  for (const auto& [name, file] : impl_->files) {
    auto& opened = impl_->open(name, "");
    if (!opened.is_checked()) impl_->check(file, opened, "");
  }
}

void export_checkpoint(const Checkpoint& checkpoint, const std::string& file) {
  checkpoint.verify();  // then no tensor is larger than the files, and its memory can be allocated
  std::vector<TensorBytes> weights;
  for (const auto& tensor : checkpoint.tensors()) {
    if (tensor.weight) weights.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
  }
  std::vector<std::byte> buffer;
  const auto read = [&](size_t i) -> std::span<const std::byte> {
    TensorPart whole{weights[i].name, weights[i].dtype, weights[i].shape, {}};
    for (const auto size : whole.shape) whole.ranges.push_back({0, size});
    buffer.resize(static_cast<size_t>(count_of(whole.ranges)) * graph::size_of(whole.dtype));
    checkpoint.read(whole, buffer);
    return buffer;
  };
  const Destination to(file);
  write_safetensors(*folder_target(), to.written(), weights, read, {{"format", "pt"}});
  to.rename();
}

}  // namespace perigee::checkpoint
