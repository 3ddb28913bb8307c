-- Four ranks in pairs: how each op is split over `tensor`, and by block whether parameters are stored
-- in parts over `data`, the forward pass runs again and activations lie on the host, is chosen by the
-- exact solver, so that no rank needs more than `memory` and a step costs least.
-- When to use it: for a model that does not fit, or that nobody has written a tensor_parallel for.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "tensor", 2 }, { "data", 2 } },
  m.auto_sharding { memory = "device" },
}
