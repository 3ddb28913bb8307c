-- Low-rank adapters (LoRA): the layers of attention get two small matrices each, which are trained;
-- the model's own weights are frozen and need no gradients and no optimizer state.
-- When to use it: fine-tuning a model whose weights fit, but not their gradients and optimizer state;
-- `perigee export RUN --adapter DIR` writes the adapters alone, `-o` and `--hf` merged weights.
local m = require "perigee.methods"

return {
  m.parallel_mode {},  -- data parallel over all ranks
  m.lora { match = "blocks.*.attn.**", rank = 8, alpha = 16, dropout = 0.05 },
}
