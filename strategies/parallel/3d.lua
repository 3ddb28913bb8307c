-- Three dimensions at once: tensor parallelism within a host, pipeline stages across hosts, and data
-- parallelism over the remaining ranks.
-- When to use it: models of tens of billions of parameters and more, on many hosts.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "tensor", 2 }, { "pipe", 2 }, { "data", 1 } },  -- data takes the remaining ranks
  m.tensor_parallel { sequence = true },
  m.pipeline_parallel { schedule = "1f1b" },
}
