-- AutoDist: the fastest plan under a memory limit, with the MLPs recomputed in the backward pass.
-- When to use it: as the translation of an AutoDistConfig.
local autodist = require "perigee.autodist"

local strategy = autodist.AutoDistConfig {
  task_name = "gpt",
  memory_constraint = 32,
  recompute_modules = "mlp",
  zero_stage = 1,
  update_freq = 2,
}
return strategy
