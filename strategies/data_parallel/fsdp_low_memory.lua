-- FSDP with activation checkpointing of every block and matrix products in bfloat16.
-- When to use it: to fit the largest model with data parallelism alone.
local m = require "perigee.methods"

return {
  m.parallel_mode {},  -- data parallel over all ranks
  m.amp_native { dtype = "bfloat16" },
  m.checkpoint { "blocks.*" },
  m.fsdp {},
}
