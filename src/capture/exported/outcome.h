// Names of an exported model's results.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "capture/capture.h"

namespace perigee::exported {

// Returns a name for each leaf of the archive's description of the output (`out_spec`, JSON of
// torch.utils._pytree): "output" for a tensor, "output.N" for the elements of a tuple or list, and
// the keys of a dict, a named tuple or a dataclass of a library ("loss", "logits"); parts of parts
// are joined by dots. Throws Error for text that is no such description.
std::vector<std::string> result_names(const std::string& out_spec);

// Returns the results by name with the loss among them: the result "loss", or the first where it is
// a scalar.
Result result_of(const std::vector<std::pair<std::string, at::Tensor>>& results);

}  // namespace perigee::exported
