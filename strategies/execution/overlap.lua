-- Matrix products of later microbatches add to the gradients in place. With optimizer.clip_norm = 0
-- add step = true: each bucket of gradients is then stepped as soon as it is reduced.
-- When to use it: with several microbatches. With tensor_parallel, slices = 2 hides its all-reduces.
local m = require "perigee.methods"

return {
  m.parallel_mode {},  -- data parallel over all ranks
  m.gradient_accumulation { microbatches = 2 },
  m.overlap { accumulate = true },
}
