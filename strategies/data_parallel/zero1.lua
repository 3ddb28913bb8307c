-- ZeRO level 1: every rank holds the whole model and computes its share of each batch, but keeps
-- and updates only its part of the optimizer's state; gradients are reduce-scattered once a step
-- and the new weights gathered. Ranks on the CPU of one host hold the weights once and gather none.
-- When to use it: the optimizer's state (with adamw twice the weights) does not fit; always on ranks
-- of one host's CPU. It moves at most as many bytes as plain data parallelism.
local m = require "perigee.methods"

return {
  m.parallel_mode {},  -- all ranks on one axis, `data`
  m.grad_comm { bucket_mb = 25 },  -- gradients of one bucket are reduced and sharded together
  m.zero1 {},
}
