// Names and format of a checkpoint's files, shared by its writer and its reader.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checksum.h"
#include "checkpoint/target.h"

namespace perigee::checkpoint {

// The file whose presence makes a checkpoint complete.
inline constexpr const char* kComplete = "COMPLETE";

inline constexpr const char* kCheckpointFormat = "perigee.checkpoint/1";

// A folder below `checkpoints` that a checkpoint made: "step-N", or "step-N.old" while another
// checkpoint of the same step takes its place, or "step-N.partial"; "step-N.aside-K" was set aside
// when the run went on from an earlier step. Where a target does not move folders at once, the
// folder "step-N" is partial until it is complete.
struct StepFolder {
  enum class Kind { published, replaced, partial, aside };
  int64_t step = 0;
  Kind kind = Kind::published;
  int64_t aside = 0;  // K
  std::string path;
  bool complete = false;
};

std::string store_of(const std::string& run);

// Returns the run's step folders, sorted by step, then kind.
std::vector<StepFolder> step_folders(const std::string& run);
std::vector<StepFolder> step_folders(Target& target, const std::string& run);

// As remove_checkpoint(folder).
void remove_checkpoint(Target& target, const std::string& folder);

// Removes the run's checkpoints, complete or not; files that no checkpoint has stay.
void remove_checkpoints(const std::string& run);

// Returns the number of elements of the block.
int64_t count_of(std::span<const Range> ranges);

// Returns "weight" for a whole tensor, "weight[0:4,8:16]" for a piece.
std::string key_of(const TensorPart& part);

}  // namespace perigee::checkpoint
