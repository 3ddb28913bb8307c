-- Activation checkpointing: each block keeps only its input and is recomputed in the backward pass.
-- When to use it: activations do not fit. It adds a third to the arithmetic; `every = 2` selects each
-- second block, `ops = { "attention" }` recomputes only these ops, `keep = { "mm", "attention" }` all
-- others, and with `full_every = 2` each second block is recomputed in full.
local m = require "perigee.methods"

return {
  m.parallel_mode {},  -- data parallel over all ranks
  m.checkpoint { "blocks.*" },
}
