-- ATorch, semi-automatic: tensor, pipeline and data parallelism with the degrees of parallel_mode.
-- When to use it: as the translation of a load_strategy with mixed_parallel.
local atorch = require "perigee.atorch"

local status, _, best_strategy = atorch.auto_accelerate {
  model = {},  -- the job's, as it is
  load_strategy = {
    { "parallel_mode", { { { "tensor", 2 }, { "pipeline", 2 }, { "data", 1 } } } },
    "mixed_parallel",
  },
}
assert(status)
return best_strategy
