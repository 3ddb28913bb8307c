-- A pipeline whose last stage defers the weight gradients of the head, the product with the most
-- work, to the end of its schedule: the other stages receive their gradients earlier, and the last
-- stage is idle at the end of a step anyway. The products' operands are kept until then.
-- When to use it: a pipeline of a model with a large vocabulary; a number instead of true limits the
-- deferred microbatches to those that memory allows.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "pipe", 2 }, { "data", 1 } },  -- data takes the remaining ranks
  m.pipeline_parallel { schedule = "1f1b" },
  m.overlap { deferred_head = true, accumulate = true },
}
