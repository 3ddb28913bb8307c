-- Alpa: the tutorial's manual pipeline: a boundary is marked, and each stage gets half of the devices.
-- When to use it: as the translation of a PipeshardParallel with manual layers.
local alpa = require "perigee.alpa"

alpa.init { cluster = "ray" }
alpa.mark_pipeline_boundary "blocks.1"
local strategy = alpa.parallelize {
  method = alpa.PipeshardParallel { num_micro_batches = 4, layer_option = "manual" },
}
return strategy
