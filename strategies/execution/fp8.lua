-- Linear layers multiply eight-bit floats (E4M3; E5M2 for gradients), scaled by the largest magnitude
-- of earlier microbatches; sums, parameters and the optimizer's state keep their precision.
-- When to use it: on devices with eight-bit products, or to test the effect on a model: on other
-- devices the products are emulated.
local m = require "perigee.methods"

return {
  m.parallel_mode {},
  m.fp8 { fp8 = "hybrid", match = { "blocks.*" }, fp8_amax_history_len = 4, fp8_amax_compute_algo = "max" },
}
