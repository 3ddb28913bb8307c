-- Four dimensions: weights sharded within a host, sequences over neighbours, stages across hosts, and
-- the batch over the remaining ranks.
-- When to use it: large models on sequences so long that one sample's activations do not fit.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "tensor", 2 }, { "context", 2 }, { "pipe", 2 }, { "data", 1 } },
  m.tensor_parallel {},
  m.context_parallel {},
  m.pipeline_parallel { schedule = "1f1b" },
}
