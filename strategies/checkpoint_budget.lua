-- Runs again in the backward pass as few blocks as it takes for a rank to need at most 2 GB.
-- When to use it: activations nearly fit. The decision says what was chosen and what it costs.
local m = require "perigee.methods"

return {
  m.parallel_mode {},  -- data parallel over all ranks
  m.checkpoint { "blocks.*", memory = "2GB" },
}
