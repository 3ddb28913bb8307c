-- ZeRO level 2: as ZeRO level 1, and every rank keeps only its part of the gradients, which are
-- reduce-scattered during the backward pass of every microbatch.
-- When to use it: gradients that accumulate over microbatches take too much memory beside the
-- optimizer's state. With one microbatch it moves as many bytes as plain data parallelism.
local m = require "perigee.methods"

return {
  m.parallel_mode {},
  m.grad_comm { bucket_mb = 1 },  -- at most two buckets are unsharded at a time; large models take 25
  m.zero2 {},
}
