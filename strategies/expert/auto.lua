-- What the search finds for the same job in the same precision as the experts' plans.
-- When to use it: large models in bf16 with float32 masters, on any cluster.
local solver = require "perigee.solver"

return function()
  return assert(solver.plan { methods = { { "half", { dtype = "bf16" } } } })
end
