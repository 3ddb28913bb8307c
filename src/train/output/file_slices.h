// The data ranks that a run's files are dealt to (data.slice_files), in its checkpoints' state.
#pragma once

#include <cstdint>
#include <string>

#include "data/data.h"

namespace perigee::train {

// Returns the division by which a checkpoint's run reads its files, for a plan's `division`.
// `state`: of the checkpoint; "{}": of a new run.
data::Division with_slices_of(const std::string& state, data::Division division);

// Returns the state with the number of the division's file_slices.
std::string with_file_slices(const std::string& state, const data::Division& division);

}  // namespace perigee::train
