-- Tensor, pipeline and data parallelism under ATorch's name: blocks over two stages, the matrices of
-- each over two ranks, and `data` takes the remaining ranks of the run.
-- When to use it: as a first strategy for a model that does not fit on one device.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "tensor", 2 }, { "pipe", 2 }, { "data", 1 } },
  m.mixed_parallel { pipeline = { schedule = "1f1b" } },
}
