-- A pipeline whose last stage computes the weight gradients of the head, the product with the most
-- work of all, behind all else: the other stages have its gradients earlier, and the last one is
-- idle at the end of a step anyway. What the products are made of stays until then.
-- When to use it: a pipeline of a model with a large vocabulary; a number instead of true is that of
-- the microbatches for which there is memory.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "pipe", 2 }, { "data", 1 } },  -- data takes the ranks that are left
  m.pipeline_parallel { schedule = "1f1b" },
  m.overlap { deferred_head = true, accumulate = true },
}
