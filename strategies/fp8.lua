-- Linear layers multiply eight-bit floats (E4M3, E5M2 for gradients), scaled by the largest magnitude
-- of earlier microbatches; sums, parameters and the optimizer's state stay as they were.
-- When to use it: on devices that multiply eight-bit floats, which then do, or to see what that
-- would do to a model: elsewhere products are emulated.
local m = require "perigee.methods"

return {
  m.parallel_mode {},
  m.fp8 { fp8 = "hybrid", match = { "blocks.*" }, fp8_amax_history_len = 4, fp8_amax_compute_algo = "max" },
}
