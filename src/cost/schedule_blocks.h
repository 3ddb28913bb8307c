// Hand-made orders of forwards and input gradients for split-backward schedules, as their papers
// give them. They hold no weight gradients; the search places those for the costs.
#pragma once

#include "cost/schedule_shape.h"

namespace perigee::schedule {

// ZB-H1 (reach 1, holds up to P) and ZB-H2 (reach 2, up to 2P-1), weight gradients included (Qi et
// al. 2023).
Orders zero_bubble(const Shape& shape, int reach);

// ZB-V (Qi et al. 2023): fill the pipeline, then rounds of one input gradient and one forward on
// each stage.
Orders zbv_rounds(const Shape& shape, int cap);

// A building block that repeats every six chunk ops: when stage s starts the two forwards and the
// two input gradients of a microbatch (Pipeline Parallelism with Controllable Memory, Qi et al.
// 2024).
enum class Block { v_half, v_min };
Orders repeat_block(const Shape& shape, Block block);

// DualPipeV (DeepSeek 2025). Needs microbatches >= 2 * stages.
Orders dualpipe_v(const Shape& shape);

}  // namespace perigee::schedule
