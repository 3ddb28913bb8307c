#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/fail.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/files.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/target.h"

namespace perigee::checkpoint {
using nlohmann::json;

namespace {

std::string rank_file(int64_t rank, std::string_view ending) {
  return fmt::format("rank-{}{}", rank, ending);
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

// Removes an object where that is possible; one that stays has no effect.
void try_remove(Target& target, const std::string& path) {
  try {
    target.remove(path);
  } catch (const Error&) {
  }
}

// Returns the rule that all ranks see the checkpoint.
std::string sharing(const Target& target) {
  return target.is_local() ? "train.output must be on a file system that all ranks share"
                           : "train.checkpoint_target must be a service that all ranks share";
}

// The index of all ranks' pieces, joined and checked.
class Joiner {
 public:
  // Adds a rank's list of written pieces.
  void add(const std::string& text) {
    const auto rank = json::parse(text);
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
                        {"shape", piece.at("size")},
                        {"xxh3_128", piece.at("xxh3_128")}};
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

}  // namespace

CheckpointWriter::CheckpointWriter(const std::string& run, int64_t step, Stages reached)
    : run_(run),
      target_(open_target(run, [this] { reach("transfer"); })),
      final_(inside(store_of(run), fmt::format("step-{}", step))),
      partial_(target_->moves_at_once() ? final_ + ".partial" : final_),
      step_(step),
      reached_(std::move(reached)) {}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::reach(std::string_view stage) const {
  if (reached_) reached_(stage);
}

void CheckpointWriter::begin() {
  target_->make_folder(store_of(run_));
  for (const auto& folder : step_folders(*target_, run_)) {
    if (folder.kind == StepFolder::Kind::partial) remove_checkpoint(*target_, folder.path);
  }
  if (partial_ == final_) make_way();
  target_->make_folder(partial_);
  reach("begun");
}

void CheckpointWriter::find(int64_t rank) const {
  if (target_->has_folder(partial_)) return;
  fail_run("checkpoint", "{}, but rank {} does not see {}", sharing(*target_), rank, partial_);
}

void CheckpointWriter::write_rank(int64_t rank, std::span<const Piece> pieces) {
  if (!target_->has_folder(partial_)) return;  // another rank failed and reports it
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
                       {"key", key},
                       {"xxh3_128", checksum_of(piece.bytes)}});
    tensors.push_back({key, part.dtype, size, piece.bytes});
  }
  json file;
  if (!tensors.empty()) {
    const auto name = rank_file(rank, ".safetensors");
    const auto path = inside(partial_, name);
    const auto checksum = write_safetensors(*target_, path, tensors, [&](size_t i) {
      reach("tensor");
      return tensors[i].bytes;
    });
    reach("tensors");
    const auto bytes = target_->size(path);
    if (!bytes) fail_run("checkpoint", "{} must stay as it was written, but is gone", path);
    file = {{"name", name}, {"bytes", *bytes}, {"xxh3_128", checksum}};
  }
  const json written = {{"file", file}, {"pieces", entries}};
  target_->put(inside(partial_, rank_file(rank, ".json")), written.dump());
  reach("rank");
}

void CheckpointWriter::finish(const CheckpointInfo& info, int64_t world, int64_t keep,
                              int64_t spared) {
  Joiner joiner;
  for (int64_t rank = 0; rank < world; ++rank) {
    const auto path = inside(partial_, rank_file(rank, ".json"));
    if (!target_->size(path)) {
      fail_run("checkpoint", "{}, but {} has nothing of rank {}", sharing(*target_), partial_,
               rank);
    }
    joiner.add(target_->read_all(path));
  }
  const auto index = joiner.finish(info).dump(1) + "\n";
  target_->put(inside(partial_, "index.json"), index);
  for (int64_t rank = 0; rank < world; ++rank) {
    try_remove(*target_, inside(partial_, rank_file(rank, ".json")));
  }
  target_->sync_folder(partial_);
  reach("index");
  set_aside_later(run_, step_);
  publish(checksum_of(index));
  prune(std::max<int64_t>(1, keep), spared);
}

void CheckpointWriter::publish(const std::string& index_checksum) {
  if (partial_ != final_) {
    make_way();
    target_->move_folder(partial_, final_, "");
  }
  reach("renamed");
  target_->put(inside(final_, kComplete), index_checksum + "\n");
  reach("complete");
}

void CheckpointWriter::make_way() {
  if (target_->size(inside(final_, kComplete))) {
    // It stays readable under another name until the new one is complete.
    remove_checkpoint(*target_, final_ + ".old");
    target_->move_folder(final_, final_ + ".old", kComplete);
  } else {
    remove_checkpoint(*target_, final_);
  }
}

void CheckpointWriter::prune(int64_t keep, int64_t spared) {
  int64_t kept = 0;
  const auto folders = step_folders(*target_, run_);
  for (auto it = folders.rbegin(); it != folders.rend(); ++it) {
    if (it->kind == StepFolder::Kind::aside) continue;
    const bool complete = it->kind == StepFolder::Kind::published && it->complete;
    const bool stays = complete && kept < keep;
    kept += stays;
    if (!stays && !(complete && it->step == spared)) remove_checkpoint(*target_, it->path);
  }
}

void CheckpointWriter::abandon(int64_t rank) noexcept {
  try {
    std::vector<std::string> names = {rank_file(rank, ".safetensors"), rank_file(rank, ".json")};
    if (rank == 0) names.push_back("index.json");
    for (const auto& name : names) {
      try_remove(*target_, inside(partial_, name));
      if (target_->is_local()) try_remove(*target_, inside(partial_, name + ".partial"));
    }
    target_->remove_folder(partial_);
  } catch (const std::exception&) {  // out of memory, or no service; the next begin removes it
  }
}

void CheckpointWriter::abandon_all() noexcept {
  try {
    remove_checkpoint(*target_, partial_);
  } catch (const std::exception&) {  // out of memory, or no service; the next begin removes it
  }
}

}  // namespace perigee::checkpoint
