-- Layers are split over the axis tensor, but how their products may be split is said op by op, as
-- nnScaler's AutoDist has it: `name` is an op of the graph, `parent_module` the end of a module's path.
-- When to use it: to keep an op whole, or split along another dim than tensor_parallel chooses; a
-- list may come from a YAML file (perigee.strategy.constraints).
local m = require "perigee.methods"

return {
  m.parallel_mode { { "tensor", 2 }, { "data", 1 } },
  m.tensor_parallel {},
  m.partition_constraints {
    { name = "aten::mm", parent_module = "mlp.up", allowed_partition_dims = { "0,1", "1,0" }, replica_allowed = false },
    { name = "aten::mm", parent_module = "attn.out", allowed_partition_dims = {}, replica_allowed = true },
  },
}
