-- The plan that the search finds where SwiGLU and rotary positions are one kernel each, as in llama-405b.lua.
-- When to use it: large Llama models in bf16 with float32 masters, on any cluster.
local solver = require "perigee.solver"

return function()
  local fused = { "module_replace", { "swiglu", "rotary" } }
  return assert(solver.plan { methods = { { "half", { dtype = "bf16" } }, fused } })
end
