// The published orders of forwards and input gradients with split backward passes. They have no
// weight gradients; the search places those for the costs.
#pragma once

#include "schedule/shape.h"

namespace perigee::schedule {

// ZB-H1 (reach 1, up to P in flight) and ZB-H2 (reach 2, up to 2P-1), weight gradients included (Qi
// et al. 2023).
Orders zero_bubble(const Shape& shape, int reach);

// ZB-V (Qi et al. 2023): fill the pipeline, then rounds of one input gradient and one forward on
// each stage.
Orders zbv_rounds(const Shape& shape, int cap);

// A building block repeated every six chunk ops: the slots in which stage s starts the two forwards
// and the two input gradients of a microbatch (Pipeline Parallelism with Controllable Memory, Qi et
// al. 2024).
enum class RepeatedBlock { v_half, v_min };
Orders repeat_block(const Shape& shape, RepeatedBlock block);

// DualPipeV (DeepSeek 2025). Requires microbatches >= 2 * stages.
Orders dualpipe_v(const Shape& shape);

}  // namespace perigee::schedule
