-- FSDP that keeps the parts of parameters and optimizer state in the host's memory.
-- When to use it: sharded over all ranks, parameters and optimizer state still do not fit on the devices.
local m = require "perigee.methods"

return {
  m.parallel_mode {},  -- data parallel over all ranks
  m.fsdp { cpu_offload = true },
}
