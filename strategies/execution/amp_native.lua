-- Mixed precision: matrix products, convolutions and attention compute in bf16, the other ops in
-- float32; weights and the optimizer's state stay float32.
-- When to use it: on GPUs, and on CPUs with bf16 instructions, where it halves the time of matrix
-- products and the memory of most activations. With fp16, for older GPUs, the loss is scaled up
-- so that small gradients do not underflow, and a step that overflows is skipped on all ranks.
local m = require "perigee.methods"

return {
  m.parallel_mode {},
  m.amp_native { dtype = "bf16" },
}
