// The part that links LibTorch, opened when first asked for.
#pragma once

#include "train/host.h"

namespace perigee::command {

// Opens perigee_torch from the folder of the command's libraries; executes no tensor op. Throws
// Error when it cannot be opened.
train::Host& torch_host();

}  // namespace perigee::command
