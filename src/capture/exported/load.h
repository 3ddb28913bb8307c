// Archives of torch.export as models.
#pragma once

#include <string>

#include "capture/capture.h"

namespace perigee {

// Loads an archive of torch.export (.pt2). Its `forward` gets the batch's tensors by the names of
// the exported module's arguments and returns the loss, or a tuple or dict with it, as
// load_script's does. Training mode and dropout are those of the export. Throws Error for an
// archive that cannot be read whole, for ops that are not LibTorch's, and for a batch of other
// names, types or sizes.
Model load_exported(const std::string& path);

}  // namespace perigee
