-- The plan that the search finds for a job in the precision of the published plans.
-- When to use it: large models in bf16 with float32 masters, on any cluster.
local solver = require "perigee.solver"

return function()
  return assert(solver.plan { methods = { { "half", { dtype = "bf16" } } } })
end
