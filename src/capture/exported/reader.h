// From an archive's JSON to a program that can be replayed.
#pragma once

#include "capture/exported/archive.h"
#include "capture/exported/program.h"

namespace perigee::exported {

// Reads the graph. Subgraphs of torch.no_grad and of a disabled torch.autocast are inlined. Throws
// Error naming the thing for:
// - an op that is not LibTorch's, that writes to `out` or takes a text other than an option of an
//   algorithm (plan/data_ops.h), and control flow (cond, map, scan);
// - a dynamic dim other than dim 0 of the batch's tensors, or several sizes of dim 0;
// - a parameter, buffer or constant that the archive lacks or has in another shape or type;
// - JSON that breaks the schema.
Program read_program(const Archive& archive);

}  // namespace perigee::exported
