-- Data parallelism: every rank holds the whole model and computes its share of each batch; the
-- gradients are averaged over the ranks, in buckets, while the backward pass still runs.
-- When to use it: the model, its gradients and the optimizer's state fit on one device, and more
-- devices shall make each step faster. Works for every model.
local m = require "perigee.methods"

return {
  m.parallel_mode {},  -- all ranks on one axis, `data`
  m.grad_comm { bucket_mb = 1 },  -- small buckets start early; large models take 25
}
