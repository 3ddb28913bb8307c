-- Fully sharded data parallelism (ZeRO level 3): every rank keeps its part of parameters, gradients
-- and optimizer state. A block's parameters are gathered while the block before it computes, used,
-- and dropped again, in the forward and in the backward pass.
-- When to use it: the model does not fit on one device. It moves half as many bytes again as plain
-- data parallelism.
local m = require "perigee.methods"

return {
  m.parallel_mode {},
  m.fsdp {},  -- a unit is a block; `match` and `atorch_wrap_cls` pick others
}
