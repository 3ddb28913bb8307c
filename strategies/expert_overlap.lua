-- Expert parallelism whose all-to-all hides behind other microbatches: while the rows of one are on
-- their way to the experts or back, the forward pass of the next one computes, or the backward pass
-- of the one before.
-- When to use it: mixtures whose ranks wait for tokens, with several microbatches. Two of them are
-- then under way at once, which takes memory. In a pipeline use 1f1b, eager_1f1b or interleaved.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "expert", 2 }, { "data", 1 } },
  m.expert_parallel {},
  m.gradient_accumulation { microbatches = 4 },
  m.overlap { experts = true },
}
