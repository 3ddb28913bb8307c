-- The model in bf16: parameters and inputs are read in it, ops compute in it, gradients come out in
-- it and are reduced so; the optimizer steps float32 masters, which checkpoints hold.
-- When to use it: where amp_native still takes too much memory for activations and gradients. With
-- masters = false nothing is float32 but the optimizer's state, and new weights are rounded at
-- random, so that small updates are not lost.
local m = require "perigee.methods"

return {
  m.parallel_mode {},
  m.half { dtype = "bf16" },
}
