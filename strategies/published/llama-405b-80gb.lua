-- The plan of llama-405b.lua with the recomputation with which it fits in 80 GB here: selective in all
-- blocks (products with weights and attention are kept), full in two of a stage's eight, chosen so
-- that every stage stays below the limit.
-- When to use it: as the plan of that size that a search has to match.
local m = require "perigee.methods"

local starts, full = {}, {}
for block = 0, 125 do
  starts[#starts + 1] = "blocks." .. block
  local part = block + 1 -- the first part has no block: its stage recomputes other chunks
  local stage, chunk = part % 16, math.floor(part / 16)
  if chunk % 4 == (stage == 0 and 1 or 0) then full[#full + 1] = "blocks." .. block end
end
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
    m.checkpoint { "blocks.*", keep = { "mm", "attention" }, full = full },
    m.zero1 {},
  },
}
