-- AutoDist: the fastest plan in a memory limit, with the MLPs run again in the backward pass.
-- When to use it: as the start of what an AutoDistConfig becomes.
local autodist = require "perigee.autodist"

local strategy = autodist.AutoDistConfig {
  task_name = "gpt",
  memory_constraint = 32,
  recompute_modules = "mlp",
  zero_stage = 1,
  update_freq = 2,
}
return strategy
