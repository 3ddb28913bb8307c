#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/fail.h"
#include "base/files/durable.h"
#include "base/files/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/files.h"
#include "checkpoint/safetensors.h"

namespace perigee::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

std::string rank_file(int64_t rank, std::string_view ending) {
  return fmt::format("rank-{}{}", rank, ending);
}

std::string inside(const std::string& folder, std::string_view name) {
  return (fs::path(folder) / name).string();
}

void check_piece(const Piece& piece) {
  const auto& part = piece.part;
  bool fits = part.ranges.size() == part.shape.size();
  for (size_t d = 0; fits && d < part.shape.size(); ++d) {
    const auto& [begin, length] = part.ranges[d];
    fits = begin >= 0 && length >= 0 && begin + length <= part.shape[d];
  }
  const auto bytes = count_of(part.ranges) * static_cast<int64_t>(graph::size_of(part.dtype));
  if (!fits || static_cast<int64_t>(piece.bytes.size()) != bytes) {
    fail_run("checkpoint", "a piece of {} must lie in the tensor and be {} bytes, but has {}",
             part.name, bytes, piece.bytes.size());
  }
}

// The index of all ranks' pieces, joined and checked.
class Joiner {
 public:
  // Adds a rank's list of written pieces.
  void add(const std::string& path) {
    const auto rank = json::parse(read_file(path, "checkpoint"));
    if (!rank.at("pieces").empty()) files_.push_back(rank.at("file"));
    for (const auto& piece : rank.at("pieces")) add_piece(piece, rank.at("file").at("name"));
  }

  json finish(const CheckpointInfo& info) const {
    for (const auto& [name, tensor] : tensors_) {
      int64_t size = 1;
      for (const int64_t n : tensor.at("shape")) size *= n;
      const auto covered = covered_.at(name);
      if (covered != size) {
        fail_run("checkpoint", "the ranks' pieces must cover {} once, but cover {} of {} elements",
                 name, covered, size);
      }
    }
    const auto state = json::parse(info.state, nullptr, false);
    if (!state.is_object()) fail_run("checkpoint", "the state must be a JSON object");
    return {{"format", kCheckpointFormat}, {"step", info.step}, {"samples", info.samples},
            {"plan", info.plan_hash},      {"state", state},    {"files", files_},
            {"tensors", tensors_}};
  }

 private:
  void add_piece(const json& piece, const std::string& file) {
    const std::string name = piece.at("name");
    auto& tensor = tensors_[name];
    const json head = {
        {"dtype", piece.at("dtype")}, {"shape", piece.at("shape")}, {"weight", piece.at("weight")}};
    if (tensor.is_null()) {
      tensor = head;
      tensor["pieces"] = json::array();
    }
    for (const auto& [key, value] : head.items()) {
      if (tensor.at(key) != value) {
        fail_run("checkpoint", "all ranks must agree on {} of {}, but {} has {} and another {}",
                 key, name, file, value.dump(), tensor.at(key).dump());
      }
    }
    const json entry = {{"file", file},
                        {"key", piece.at("key")},
                        {"begin", piece.at("begin")},
                        {"shape", piece.at("size")}};
    if (!begins_[name].insert(entry.at("begin").get<std::vector<int64_t>>()).second) {
      fail_run("checkpoint", "one rank must own each piece, but two wrote {}",
               piece.at("key").get<std::string>());
    }
    int64_t size = 1;
    for (const int64_t n : entry.at("shape")) size *= n;
    covered_[name] += size;
    tensor["pieces"].push_back(entry);
  }

  json files_ = json::array();
  std::map<std::string, json> tensors_;
  std::map<std::string, int64_t> covered_;
  std::map<std::string, std::set<std::vector<int64_t>>> begins_;
};

// Returns the size of a file that this process has written.
uint64_t bytes_of(const std::string& path) {
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  if (error) {
    fail_run("file", "{} must stay while a checkpoint is written, but: {}", path, error.message());
  }
  return bytes;
}

}  // namespace

CheckpointWriter::CheckpointWriter(const std::string& run, int64_t step, Stages reached)
    : run_(run),
      partial_((fs::path(store_of(run)) / fmt::format("step-{}.partial", step)).string()),
      final_((fs::path(store_of(run)) / fmt::format("step-{}", step)).string()),
      step_(step),
      reached_(std::move(reached)) {}

void CheckpointWriter::reach(std::string_view stage) const {
  if (reached_) reached_(stage);
}

void CheckpointWriter::begin() {
  make_folders(store_of(run_));
  for (const auto& folder : step_folders(run_)) {
    if (folder.kind == StepFolder::Kind::partial) remove_checkpoint(folder.path);
  }
  make_folders(partial_);
  reach("begun");
}

void CheckpointWriter::find(int64_t rank) const {
  std::error_code ignored;
  if (fs::is_directory(partial_, ignored)) return;
  fail_run("checkpoint",
           "train.output must be on a file system that all ranks share, but rank {} does not see "
           "{}",
           rank, partial_);
}

void CheckpointWriter::write_rank(int64_t rank, std::span<const Piece> pieces) {
  std::error_code ignored;
  if (!fs::is_directory(partial_, ignored)) return;  // another rank failed and reports it
  std::vector<TensorBytes> tensors;
  auto entries = json::array();
  for (const auto& piece : pieces) {
    check_piece(piece);
    const auto& part = piece.part;
    if (piece.bytes.empty()) continue;
    std::vector<int64_t> begin, size;
    for (const auto& range : part.ranges) {
      begin.push_back(range.begin);
      size.push_back(range.length);
    }
    const auto key = key_of(part);
    entries.push_back({{"name", part.name},
                       {"dtype", graph::name_of(part.dtype)},
                       {"shape", part.shape},
                       {"weight", piece.weight},
                       {"begin", begin},
                       {"size", size},
                       {"key", key}});
    tensors.push_back({key, part.dtype, size, piece.bytes});
  }
  json file;
  if (!tensors.empty()) {
    const auto name = rank_file(rank, ".safetensors");
    const auto checksum = write_safetensors(inside(partial_, name), tensors, [&](size_t i) {
      reach("tensor");
      return tensors[i].bytes;
    });
    reach("tensors");
    file = {{"name", name}, {"bytes", bytes_of(inside(partial_, name))}, {"xxh3_128", checksum}};
  }
  const json written = {{"file", file}, {"pieces", entries}};
  write_durably(inside(partial_, rank_file(rank, ".json")), written.dump());
  reach("rank");
}

void CheckpointWriter::finish(const CheckpointInfo& info, int64_t world, int64_t keep) {
  Joiner joiner;
  for (int64_t rank = 0; rank < world; ++rank) {
    const auto path = inside(partial_, rank_file(rank, ".json"));
    std::error_code ignored;
    if (!fs::exists(path, ignored)) {
      fail_run("checkpoint",
               "train.output must be on a file system that all ranks share, but {} has nothing of "
               "rank {}",
               partial_, rank);
    }
    joiner.add(path);
  }
  const auto index = joiner.finish(info).dump(1) + "\n";
  write_durably(inside(partial_, "index.json"), index);
  std::error_code ignored;
  for (int64_t rank = 0; rank < world; ++rank) {
    fs::remove(inside(partial_, rank_file(rank, ".json")), ignored);
  }
  sync_folder(partial_);
  reach("index");
  set_aside_later(run_, step_);
  publish(checksum_of(index));
  prune(std::max<int64_t>(1, keep));
}

void CheckpointWriter::publish(const std::string& index_checksum) {
  std::error_code ignored;
  if (fs::exists(inside(final_, "COMPLETE"), ignored)) {
    // It stays readable under another name until the new one is complete.
    remove_checkpoint(final_ + ".old");
    rename_durably(final_, final_ + ".old");
  } else {
    remove_checkpoint(final_);
  }
  rename_durably(partial_, final_);
  reach("renamed");
  write_durably(inside(final_, "COMPLETE"), index_checksum + "\n");
  reach("complete");
}

void CheckpointWriter::prune(int64_t keep) {
  int64_t kept = 0;
  const auto folders = step_folders(run_);
  for (auto it = folders.rbegin(); it != folders.rend(); ++it) {
    if (it->kind == StepFolder::Kind::aside) continue;
    const bool stays = it->kind == StepFolder::Kind::published && it->complete && kept < keep;
    kept += stays;
    if (!stays) remove_checkpoint(it->path);
  }
}

void CheckpointWriter::abandon(int64_t rank) noexcept {
  try {
    std::vector<std::string> names = {rank_file(rank, ".safetensors"), rank_file(rank, ".json")};
    if (rank == 0) names.push_back("index.json");
    std::error_code ignored;
    for (const auto& name : names) {
      for (const auto* ending : {"", ".partial"})
        fs::remove(inside(partial_, name + ending), ignored);
    }
    fs::remove(partial_, ignored);
  } catch (const std::exception&) {  // out of memory; the next begin removes it
  }
}

void CheckpointWriter::abandon_all() noexcept {
  try {
    remove_checkpoint(partial_);
  } catch (const std::exception&) {  // out of memory; the next begin removes it
  }
}

}  // namespace perigee::checkpoint
