-- The model in bf16: parameters, inputs, ops and gradients have this type, and gradients are reduced
-- in it; the optimizer steps float32 masters, which checkpoints hold.
-- When to use it: amp_native still takes too much memory for activations and gradients. With
-- masters = false only the optimizer's state is float32, and new weights are rounded
-- stochastically, so that small updates are not lost.
local m = require "perigee.methods"

return {
  m.parallel_mode {},
  m.half { dtype = "bf16" },
}
