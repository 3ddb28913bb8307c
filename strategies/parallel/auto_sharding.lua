-- Four ranks in pairs. The exact solver chooses the sharding of each op over `tensor`, and for each
-- block whether parameters are sharded over `data`, the forward pass is recomputed and activations
-- are offloaded, such that no rank needs more than `memory` and the cost of a step is least.
-- When to use it: for a model that does not fit, or whose layers no tensor_parallel pattern covers.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "tensor", 2 }, { "data", 2 } },
  m.auto_sharding { memory = "device" },
}
