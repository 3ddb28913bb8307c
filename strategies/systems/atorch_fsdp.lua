-- ATorch, semi-automatic: FSDP with the recommended configs, and activation checkpointing of blocks.
-- When to use it: as the translation of a load_strategy with fsdp and checkpoint.
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
