-- Gradient accumulation: each rank runs its share of the batch as four microbatches, whose gradients
-- are added before the one optimizer step. The result is that of the whole batch at once.
-- When to use it: the activations of the batch do not fit in memory. Leave batch.micro out of the
-- job: either the strategy sets the number of microbatches, or the job sets their size.
local m = require "perigee.methods"

return {
  m.parallel_mode {},
  m.gradient_accumulation { microbatches = 4 },
}
