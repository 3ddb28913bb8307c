-- Expert parallelism with interleaved microbatches that hide the all-to-all: while the rows of one
-- microbatch travel to the experts or back, the forward pass of the next one or the backward pass of
-- the previous one computes.
-- When to use it: mixtures whose ranks wait for tokens, with several microbatches. Two of them are in
-- flight at once, which takes memory. Pipelines require 1f1b, eager_1f1b or interleaved.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "expert", 2 }, { "data", 1 } },
  m.expert_parallel {},
  m.gradient_accumulation { microbatches = 4 },
  m.overlap { experts = true },
}
