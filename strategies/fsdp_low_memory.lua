-- Parameters in parts, blocks that run again, and matrix products in bfloat16.
-- When to use it: the largest model that fits with the batch over all ranks alone.
local m = require "perigee.methods"

return {
  m.parallel_mode {},  -- data parallel over all ranks
  m.amp_native { dtype = "bfloat16" },
  m.checkpoint { "blocks.*" },
  m.fsdp {},
}
