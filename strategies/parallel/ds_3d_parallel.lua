-- DeepSpeed's 3D parallelism: tensor, pipeline and data axes, with the precision and the batch of a
-- DeepSpeed config.
-- When to use it: to port a DeepSpeed job; mixed_parallel is the same without the config.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "tensor", 2 }, { "pipe", 2 }, { "data", 1 } },
  m.ds_3d_parallel {
    ds_config = { gradient_accumulation_steps = 2, bf16 = { enabled = false } },
  },
}
