// Checkpoints that are written while the job goes on.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "exec/comm/communicator.h"
#include "train/step/rank_trainer.h"

namespace perigee::train {

struct CheckpointOptions {
  std::string run;           // its output folder, or its place in an S3 service
  std::string plan_hash;     // of CheckpointInfo
  int64_t more_samples = 0;  // that the run has seen beside those of its steps' present batches
  // Rank 0, before a checkpoint begins; throws where the folder may not be written.
  std::function<void()> check = [] {};
  // Rank 0, before a checkpoint is completed, on another thread: writes the run's other files to
  // the disk.
  std::function<void()> sync = [] {};
  // Is told how many of all tensors of this rank are written, on the thread that writes.
  std::function<void(int64_t part, int64_t all)> written = [](int64_t, int64_t) {};
  // At each stage of writing, on the thread that writes (CheckpointWriter).
  checkpoint::Stages reached;
};

// The checkpoints of one rank, one at a time. The rank copies its pieces, at once, and goes
// on; a thread of its own writes them. Once all ranks have written theirs, rank 0 completes
// the checkpoint on its thread. Ranks learn from each other after each step (`poll`) that they
// have written, so that no rank counts as silent however long a disk takes. All ranks call the
// same functions.
//
// Errors of writing are thrown (failed) by the next call on the rank that has one; the others then
// lose that rank. The unfinished checkpoint is removed; earlier ones stay as they are.
class Checkpoints {
 public:
  // Returns the rank's pieces at a step, copied to `copy` where it has room: bytes_to_write(step).
  struct Pieces {
    std::function<int64_t(int64_t step)> bytes;
    std::function<Snapshot(int64_t step, std::span<std::byte> copy)> take;
    std::function<std::shared_ptr<std::byte>(int64_t bytes)> memory;  // for the copy
    // Returns whether the pieces may be written; all ranks return the same.
    std::function<bool(int64_t step, const Snapshot&)> accept = [](int64_t, const Snapshot&) {
      return true;
    };
  };
  Checkpoints(exec::Communicator& communicator, const job::Job& job, CheckpointOptions options,
              Pieces pieces);
  // The same for the pieces of a trainer.
  Checkpoints(RankTrainer& trainer, exec::Communicator& communicator, const job::Job& job,
              CheckpointOptions options);
  // Ends an unfinished checkpoint and removes it.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // Allocates the memory for the copies, which stays allocated; else the first `begin` does.
  void reserve(int64_t step);
  // Completes the checkpoint before, if any, and begins the one of a step. `state`: of the training
  // loop, a JSON object. `copies`: tensors may change after the call; else they stay as they are
  // until `wait` returns. Returns the seconds that the call took; nothing where weights are not
  // finite, so that no checkpoint begins, or throws (finite_weights.h).
  std::optional<double> begin(int64_t step, const std::string& state, bool copies);
  // Looks after a checkpoint that is being written.
  void poll();
  // Returns once the checkpoint that is being written is complete; at once where there is none.
  void wait();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perigee::train
