-- Tensor parallelism with constraints on single ops, in the form of nnScaler's AutoDist: `name` is an
-- op of the graph, `parent_module` the end of a module's path, followed by the allowed dims.
-- When to use it: to replicate an op, or to shard it along another dim than tensor_parallel chooses; a
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
