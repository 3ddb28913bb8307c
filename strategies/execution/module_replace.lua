-- Replaces layers that the model spells out in primitive ops (attention, norms, rotary positions,
-- SwiGLU) by one op forward and one backward, which keep less for the backward pass.
-- When to use it: with models of your own that spell such layers out; of the built-in ones llama's
-- SwiGLU gains. `perigee plan --explain` lists the replaced layers, and the others with the reason.
local m = require "perigee.methods"

return {
  m.parallel_mode {},
  m.module_replace {},
}
