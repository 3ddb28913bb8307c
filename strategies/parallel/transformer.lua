-- For the encoder-decoder of transformer.toml: two stages, the encoder and the decoder, each over
-- two ranks of tensor parallelism, with activation checkpointing of every block.
-- When to use it: as a pattern for a model of your own, whose layers Perigee does not know.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "tensor", 2 }, { "pipe", 2 }, { "data", 1 } },
  m.tensor_parallel {
    column = { "**.query", "**.key", "**.value", "**.mlp.0" },
    row = { "**.out", "**.mlp.2" },
  },
  m.pipeline_parallel { starts = { "decoder" } },
  m.checkpoint { "EncoderBlock", "DecoderBlock" },
}
