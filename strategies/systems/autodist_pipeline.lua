-- AutoDist: a pipeline whose stages begin at blocks, with a limit on the bubble.
-- When to use it: as the translation of an AutoDistConfig with pipeline_pivots.
local autodist = require "perigee.autodist"

local strategy = autodist.AutoDistConfig {
  mesh_col = 2,
  pipeline_pivots = "blocks",
  pipeline_nstages = 2,
  pipeline_scheduler = "1f1b",
  max_pipeline_bubble_ratio = 0.4,
  update_freq = 4,
}
return strategy
