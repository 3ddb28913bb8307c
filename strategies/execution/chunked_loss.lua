-- Logits, cross entropy and their gradients are computed in eight chunks of rows (tokens), so that
-- no more than an eighth of the logits exists at a time.
-- When to use it: the vocabulary is large, and the logits are a large part of the peak memory.
local m = require "perigee.methods"

return {
  m.parallel_mode {},  -- data parallel over all ranks
  m.chunked_loss { chunks = 8 },
}
