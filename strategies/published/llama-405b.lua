-- Llama 3 405B on 8,192 H100: tensor 8, 16 stages, data 64 (Grattafiori et al. 2024, table 4: 430
-- TFLOPs/s a GPU, MFU 43%). A chunk is one layer; the first has only the embedding and the last only
-- the output (section 3.3.2). SwiGLU and rotary positions are one kernel each.
-- When to use it: as the published plan that a search has to match.
local m = require "perigee.methods"

local starts = {}
for block = 0, 125 do starts[#starts + 1] = "blocks." .. block end
starts[#starts + 1] = "norm"

return {
  job = "llama-405b.toml",
  methods = {
    m.parallel_mode { { "tensor", 8 }, { "data", 64 }, { "pipe", 16 } },
    m.half { dtype = "bf16" },
    m.module_replace { "swiglu", "rotary" },
    m.tensor_parallel { sequence = true },
    m.pipeline_parallel { schedule = "interleaved", chunks = 8, starts = starts },
    m.overlap { receives = true },
    m.gradient_accumulation { microbatches = 32 },
    m.zero1 {},
  },
}
