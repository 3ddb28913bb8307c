// `perigee profile --export` and `--import`.
#pragma once

#include <string>

#include "train/task/task.h"

namespace perigee::train {

// Imports, then exports the user's profile database, as the options say. Returns a report. Throws
// Error where the imported file has no entries of a device of this machine.
std::string move_profile(const ProfileOptions& options);

}  // namespace perigee::train
