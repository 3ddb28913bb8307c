-- Tensor, pipeline and data parallel together, as ATorch's users name it: blocks spread over two
-- stages, the matrices of each over two ranks, and `data` takes the other ranks of the run.
-- When to use it: as a first strategy for a model that one device does not hold.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "tensor", 2 }, { "pipe", 2 }, { "data", 1 } },
  m.mixed_parallel { pipeline = { schedule = "1f1b" } },
}
