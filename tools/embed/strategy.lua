-- Data parallelism over the ranks that the application says.
local m = require "perigee.methods"

return {
  m.parallel_mode {},
  m.grad_comm { overlap = true },
}
