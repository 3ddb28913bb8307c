-- ATorch, semi-automatic: optimizer state sharded, and matrix products in 16 bits.
-- When to use it: as the translation of a load_strategy with zero1 and amp_native.
local atorch = require "perigee.atorch"

local status, _, best_strategy = atorch.auto_accelerate {
  model = {},  -- the job's, as it is
  load_strategy = { "parallel_mode", "zero1", { "amp_native", { dtype = "bfloat16" } } },
}
assert(status)
return best_strategy
