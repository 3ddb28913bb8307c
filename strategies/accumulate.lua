-- Gradient accumulation: each rank runs its share of the batch in four pieces (microbatches) whose
-- gradients add up before the one optimizer step. The result is that of the whole batch at once.
-- When to use it: the activations of the batch do not fit in memory. Leave batch.micro out of the
-- job: either the strategy says how many microbatches there are, or the job how large they are.
local m = require "perigee.methods"

return {
  m.parallel_mode {},
  m.gradient_accumulation { microbatches = 4 },
}
