-- A mixture of 64 experts on 256 H100: experts over the 8 ranks of a node, as in Megatron Bridge's
-- Qwen3 30B-A3B on H100 (docs/performance-summary.md), and optimizer state sharded. No figure is
-- published for this model.
-- When to use it: as the published plan that a search has to match.
local m = require "perigee.methods"

return {
  job = "moe-64e.toml",
  methods = {
    m.parallel_mode { { "expert", 8 }, { "data", 32 } },
    m.half { dtype = "bf16" },
    m.expert_parallel {},
    m.zero1 {},
  },
}
