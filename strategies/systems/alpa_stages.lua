-- Alpa: explicit stages, each on a submesh of two devices that shard its operators.
-- When to use it: to repeat the result that an automatic run printed.
local alpa = require "perigee.alpa"

local strategy = alpa.parallelize {
  method = alpa.PipeshardParallel {
    num_micro_batches = 2,
    layer_option = alpa.AutoLayerOption { layer_num = 2 },
    stage_option = alpa.ManualStageOption {
      forward_stage_layer_ids = { { 0 }, { 1 } },
      submesh_physical_shapes = { { 1, 2 }, { 1, 2 } },
      submesh_logical_shapes = { { 1, 2 }, { 1, 2 } },
      submesh_autosharding_option_dicts = { {}, {} },
    },
  },
}
return strategy
