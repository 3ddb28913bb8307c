-- ATorch, semi-automatic: parameters in parts with the recommended configs, and blocks that run again.
-- When to use it: as the start of what a load_strategy with fsdp and checkpoint becomes.
local atorch = require "perigee.atorch"

local status, _, best_strategy = atorch.auto_accelerate {
  model = {},  -- the job's, as it is
  load_strategy = {
    "parallel_mode",
    { "fsdp", { forward_prefetch = true, limit_all_gathers = true, atorch_wrap_cls = { "Block" } } },
    { "checkpoint", { wrap_class = { "Block" } } },
  },
}
assert(status)
return best_strategy
