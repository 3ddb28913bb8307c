-- Activation checkpointing of the fewest blocks with which a rank needs at most 2 GB.
-- When to use it: activations nearly fit. The decision names the chosen blocks and their cost.
local m = require "perigee.methods"

return {
  m.parallel_mode {},  -- data parallel over all ranks
  m.checkpoint { "blocks.*", memory = "2GB" },
}
