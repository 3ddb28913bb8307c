-- Llama 3 70B on 64 A100: fully sharded data parallelism, full recompute (torchtitan,
-- docs/performance.md of August 2024: 331 tokens/s a GPU, MFU 51.7%).
-- When to use it: as the published plan that a search has to match.
local m = require "perigee.methods"

return {
  job = "llama-70b.toml",
  methods = {
    m.parallel_mode { { "data", 64 } },
    m.half { dtype = "bf16" },
    m.fsdp {},
    m.checkpoint { "blocks.*" },
  },
}
