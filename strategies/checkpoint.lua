-- Activation checkpointing: each block keeps its input alone and runs again in the backward pass.
-- When to use it: activations do not fit. A third more arithmetic; `every = 2` takes each second
-- block, `ops = { "attention" }` runs only these ops again, `keep = { "mm", "attention" }` all but
-- these, and with `full_every = 2` beside it all of each second block.
local m = require "perigee.methods"

return {
  m.parallel_mode {},  -- data parallel over all ranks
  m.checkpoint { "blocks.*" },
}
