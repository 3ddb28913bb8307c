-- Fully sharded data parallelism (ZeRO level 3): every rank keeps its part of parameters, gradients
-- and optimizer state. A block's parameters are gathered while the previous block computes, used,
-- and dropped, in the forward pass and once more in the backward pass.
-- When to use it: the model does not fit on one device. It moves 1.5 times the bytes of `ddp`.
local m = require "perigee.methods"

return {
  m.parallel_mode {},
  m.fsdp {},  -- a unit is a block; `match` and `atorch_wrap_cls` pick others
}
