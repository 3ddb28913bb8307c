-- How the job is spread over ranks. Try it without running anything: perigee check strategy.lua job.toml
-- What a script can use: runtime/lua.md of Perigee.
local m = require "perigee.methods"

return {
  -- The mesh: all ranks on one axis, `data`, so each computes its share of the batch.
  m.parallel_mode {},

  -- Gradients are averaged in buckets of at least this size while the backward pass runs.
  m.grad_comm { bucket_mb = 1 },

  -- Four microbatches a step need a quarter of the memory for activations:
  -- m.gradient_accumulation { microbatches = 4 },
}
