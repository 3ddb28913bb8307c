-- Data parallelism over all ranks of the application.
local m = require "perigee.methods"

return {
  m.parallel_mode {},
  m.grad_comm { overlap = true },
}
