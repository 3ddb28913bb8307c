-- Alpa: the tutorial's automatic run, which finds layers, stages, submeshes and shardings.
-- When to use it: as the translation of a PipeshardParallel with automatic stages.
local alpa = require "perigee.alpa"

alpa.init { cluster = "ray" }
local strategy = alpa.parallelize {
  method = alpa.PipeshardParallel {
    num_micro_batches = 4,
    layer_option = alpa.AutoLayerOption { layer_num = 2 },
    stage_option = "auto",
  },
}
return strategy
