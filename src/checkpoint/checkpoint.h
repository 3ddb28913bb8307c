// The checkpoint store: sharded tensors below `<run>/checkpoints/step-N/`.
//
//   rank-R.safetensors  the pieces that rank R owns; a whole tensor is called NAME, a piece
//                       "NAME[begin:end,...]"
//   index.json          perigee.checkpoint/1: step, samples, plan hash, state, files with bytes and
//                       XXH3-128 checksums, tensors by full name with dtype, shape and pieces
//   COMPLETE            the index's checksum; written last
//
// A run that goes on from an earlier step renames complete checkpoints of later steps to
// step-N.aside-K: they stay readable, and no run removes them.
//
// A checkpoint is written to step-N.partial, renamed and then marked complete, every file and
// folder on the disk before the next stage; only then are older ones removed. A process that dies
// at any moment leaves the last complete checkpoint as it was. All ranks must see one file system.
//
// A run may also be "s3://BUCKET/PREFIX" (target.h). Its checkpoints have the same files and are
// written to step-N itself: an S3 service has an object whole or not at all, and cannot rename.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/dtype.h"
#include "mesh/placement.h"

namespace perigee::checkpoint {

using mesh::Range;

class Target;

// A part of a named tensor: one range per dim of `shape`.
struct TensorPart {
  std::string name;  // a parameter's or buffer's full name, "exp_avg:PARAM", ...
  graph::DType dtype = graph::DType::float32;
  std::vector<int64_t> shape;  // of the whole tensor
  std::vector<Range> ranges;
  bool operator==(const TensorPart&) const = default;
};

// ---- the division of work ----

// A part and the ranks that hold a copy of it, ascending.
struct Holding {
  TensorPart part;
  std::vector<int64_t> ranks;
};

// Returns the parts into which the placements cut a tensor, each with the mesh's ranks that hold
// it. Empty parts are left out. The placements must not be partial.
std::vector<Holding> holdings_of(const TensorPart& whole, const mesh::Placements& placements,
                                 const mesh::Mesh& mesh);

// Returns the bytes that each of `ranks` ranks writes.
std::vector<int64_t> bytes_by_owner(std::span<const Holding> holdings, int64_t ranks);

// Returns the rank that writes each holding, so that all ranks write about the same bytes: the
// largest first, each to its holder with the fewest bytes so far. Every rank that passes the same
// list gets the same answer.
std::vector<int64_t> owners(std::span<const Holding> holdings);

// ---- writing ----

// A part in memory, row-major. The bytes belong to the caller.
struct Piece {
  TensorPart part;
  std::span<const std::byte> bytes;
  bool weight = true;  // a parameter or buffer, which export writes; else the optimizer's state
};

struct CheckpointInfo {
  int64_t step = 0;
  int64_t samples = 0;  // seen in training
  std::string plan_hash;
  std::string state = "{}";  // a JSON object with all other state to restore
};

// Called when the writing of a checkpoint reaches a stage: "begun", "tensor" before each one,
// "tensors" once a rank's are on the disk, "rank" once its list is, "index", "renamed", "complete";
// "transfer" several times a second while a request to a service takes long. An error that it
// throws ends the writing.
using Stages = std::function<void(std::string_view stage)>;

// Writes one checkpoint of a run. Every rank constructs a writer; the caller puts a barrier of all
// ranks between the calls:
//   rank 0: begin;  every rank: find;  every rank: write_rank;  rank 0: finish
// All throw Error (failed) naming file and reason when something cannot be written, and
// do not touch earlier checkpoints; the folder step-N.partial is then removed by `abandon` or
// by the next `begin`.
class CheckpointWriter {
 public:
  // `run` is the run's output folder, or its place in an S3 service.
  CheckpointWriter(const std::string& run, int64_t step, Stages reached = nullptr);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Makes an empty step-N.partial and removes unfinished checkpoints of earlier writers.
  void begin();
  // Throws Error where the rank does not see the folder.
  void find(int64_t rank) const;
  // Writes the pieces that the rank owns. Pieces without elements are left out. Writes nothing
  // where the folder no longer exists: another rank has abandoned it.
  void write_rank(int64_t rank, std::span<const Piece> pieces);
  // Checks that the pieces of `world` ranks cover every tensor once, writes the index, publishes
  // the checkpoint, sets later ones aside (set_aside_later), and removes all but the newest `keep`
  // and that of the step `spared`.
  void finish(const CheckpointInfo& info, int64_t world, int64_t keep, int64_t spared = 0);
  // Removes the rank's files of an unfinished checkpoint, and its folder once no rank's file is
  // left in it; never throws.
  void abandon(int64_t rank) noexcept;
  // Removes the files of all ranks of an unfinished checkpoint; never throws.
  void abandon_all() noexcept;

 private:
  void reach(std::string_view stage) const;
  void publish(const std::string& index_checksum);
  void make_way();
  void prune(int64_t keep, int64_t spared);

  std::string run_;
  std::unique_ptr<Target> target_;
  std::string final_, partial_;  // the same where the target does not move folders at once
  int64_t step_;
  Stages reached_;
};

// ---- reading ----

struct StoredTensor {
  std::string name;
  graph::DType dtype = graph::DType::float32;
  std::vector<int64_t> shape;
  bool weight = true;
};

// A complete checkpoint, opened for reading. Copies share one reader; one thread at a time.
class Checkpoint {
 public:
  // Opens a checkpoint's folder. Throws Error when it is not complete, or its index is damaged.
  explicit Checkpoint(const std::string& folder);

  const std::string& folder() const;
  const CheckpointInfo& info() const;
  const std::vector<StoredTensor>& tensors() const;  // sorted by name
  // Returns the tensor, or nullptr.
  const StoredTensor* find(std::string_view name) const;

  // Copies the part, row-major, to `out`, whatever pieces the checkpoint was written in. The first
  // read of a file checks its checksum. Throws Error naming tensor, file and remedy when the tensor
  // is missing, has another dtype or shape, or a file is missing, cut short or damaged.
  void read(const TensorPart& part, std::span<std::byte> out) const;
  // Throws Error when the tensor is missing, or has another dtype or shape. Reads nothing.
  void require(const TensorPart& part) const;

  // Checks every file's size and checksum. Throws Error for the first that is wrong.
  void verify() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// Returns the folder of the newest complete checkpoint of a run, or "" where it has none. Warns
// once when a newer one is incomplete.
std::string newest_checkpoint(const std::string& run);

// Returns `path` where it is a checkpoint, or the newest of the run at `path`. Throws Error when
// there is none.
std::string find_checkpoint(const std::string& path);

// Returns the run's folder: `path` itself, or the folder two levels above a checkpoint.
std::string run_of(const std::string& path);

// Renames the run's complete checkpoints of steps after `step` to step-N.aside-K, with the smallest
// K that the run has not used, and logs one line. Returns K; 0 where there are none. `before` is
// called with K before the first is renamed.
int64_t set_aside_later(const std::string& run, int64_t step,
                        const std::function<void(int64_t)>& before = nullptr);

// Writes the full weights under their names to one safetensors file (durable.h: Destination).
void export_checkpoint(const Checkpoint& checkpoint, const std::string& file);

// Removes a checkpoint's folder, its COMPLETE mark first; files that no checkpoint has stay, and
// the folder with them.
void remove_checkpoint(const std::string& folder);

}  // namespace perigee::checkpoint
