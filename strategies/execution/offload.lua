-- Activations of all blocks but the last and the optimizer state in the host's memory, copied back
-- while the device computes.
-- When to use it: the device is short of memory and the link to the host is idle.
local m = require "perigee.methods"

return {
  m.parallel_mode {},  -- data parallel over all ranks
  m.offload { layers = 1, optimizer = true },
}
