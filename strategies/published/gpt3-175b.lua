-- GPT-3 175B on 64 A100: tensor 8, 8 stages of 3 chunks, full recompute (Korthikanti et al. 2022,
-- "Reducing Activation Recomputation in Large Transformer Models", tables 3 and 5: 18.13 s a step).
-- When to use it: as the published plan that a search has to match.
local m = require "perigee.methods"

return {
  job = "gpt3-175b.toml",
  methods = {
    m.parallel_mode { { "tensor", 8 }, { "data", 1 }, { "pipe", 8 } },
    m.half { dtype = "bf16" },
    m.tensor_parallel {},
    m.pipeline_parallel { schedule = "interleaved", chunks = 3 },
    m.overlap { receives = true },
    m.gradient_accumulation { microbatches = 64 },
    m.checkpoint { "blocks.*" },
  },
}
