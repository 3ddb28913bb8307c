-- The distribution of the job over ranks. Test it without training: perigee check strategy.lua job.toml
-- runtime/lua.md of Perigee documents all functions.
local m = require "perigee.methods"

return {
  -- The mesh: all ranks on one axis, `data`, so each computes its share of the batch.
  m.parallel_mode {},

  -- Gradients are averaged in buckets of at least this size during the backward pass.
  m.grad_comm { bucket_mb = 1 },

  -- Four microbatches a step need a quarter of the memory for activations:
  -- m.gradient_accumulation { microbatches = 4 },
}
