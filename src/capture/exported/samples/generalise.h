// Exports with a fixed number of samples: export without dynamic_shapes writes the number of samples
// of its example into the sizes of views, expansions and new tensors.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "capture/exported/program.h"
#include "capture/exported/replay/replay.h"
#include "graph/graph.h"

namespace perigee::exported {

// Returns the number of samples for which the program was exported: dim 0 of all tensors of its
// batch. 0: they have no common dim 0, or it is dynamic.
int64_t fixed_samples(const Program& program);

// Captures the program's loss with that many samples.
using CaptureLoss =
    std::function<graph::Graph(const Program& program, int64_t samples, const BeforeCall& before)>;

struct Generalised {
  std::optional<Program> program;  // for any number of samples
  std::string ended;  // without one: the op at which the proof ended, or the error of twice as many
};

// Follows the samples through the program and replaces sizes that are their number. Where a size
// may be the number of samples or another number of the model, both are tried. The result counts
// only if it is proven: the loss of twice the samples is a mean, or a sum, of the same function of
// each sample (shard/loss/compare_samples.h, classify_loss.h), results and new values of buffers
// have the same ops, and no number seems to be that of the samples (baked_count.h). The program
// has fixed_samples.
Generalised generalise(const Program& program, const CaptureLoss& capture);

}  // namespace perigee::exported
