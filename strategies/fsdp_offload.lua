-- FSDP with its parts of parameters and optimizer state in the host's memory.
-- When to use it: parameters and optimizer state over all ranks do not fit on the devices.
local m = require "perigee.methods"

return {
  m.parallel_mode {},  -- data parallel over all ranks
  m.fsdp { cpu_offload = true },
}
