-- Pipeline parallelism: the layers are divided into stages, and microbatches pass through them one
-- after another. Stages exchange only activations and their gradients, so slow links suffice.
-- When to use it: the model does not fit on the ranks of one host. A small bubble requires many
-- microbatches: at least as many as stages, better four times.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "pipe", 2 }, { "data", 1 } },  -- data takes the remaining ranks
  m.pipeline_parallel { schedule = "1f1b" },  -- or zb1p, zbv, ...: `perigee schedule` draws them
}
