// Names and format of a checkpoint's files, shared by its writer and its reader.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace perigee::checkpoint {

inline constexpr const char* kCheckpointFormat = "perigee.checkpoint/1";

// A folder below `checkpoints` that a checkpoint made: "step-N", or "step-N.old" while another
// checkpoint of the same step takes its place, or "step-N.partial"; "step-N.aside-K" was set aside
// when the run went on from an earlier step.
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

// Returns the number of elements of the block.
int64_t count_of(std::span<const Range> ranges);

// Returns "weight" for a whole tensor, "weight[0:4,8:16]" for a piece.
std::string key_of(const TensorPart& part);

// Returns the XXH3-128 checksum as 32 hexadecimal digits.
std::string checksum_of(std::string_view bytes);

}  // namespace perigee::checkpoint
