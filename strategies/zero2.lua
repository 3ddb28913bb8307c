-- ZeRO level 2: as ZeRO level 1, and every rank keeps only its part of the gradients: they are
-- reduce-scattered while the backward pass still runs, in every microbatch.
-- When to use it: gradients that add up over microbatches take too much memory beside the
-- optimizer's state. With one microbatch it moves as many bytes as plain data parallelism.
local m = require "perigee.methods"

return {
  m.parallel_mode {},
  m.grad_comm { bucket_mb = 1 },  -- two buckets at a time are whole; large models take 25
  m.zero2 {},
}
