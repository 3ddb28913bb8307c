-- A mixture of experts in three dimensions: experts over neighbours, each of them sharded by tensor
-- parallelism, and optimizer state sharded over the remaining ranks.
-- When to use it: large mixtures (model.kind = "moe") on several hosts.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "tensor", 2 }, { "expert", 2 }, { "data", 1 } },
  m.tensor_parallel {},  -- attention, and the experts inside
  m.expert_parallel {},
  m.zero1 {},
}
