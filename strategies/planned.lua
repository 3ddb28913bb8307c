-- Planned tensor parallelism: the exact solver finds which weights are split over the ranks of an
-- axis, and how, so that what they compute and send to each other costs least.
-- When to use it: a model of your own whose layers Perigee does not know, or to compare with what it
-- knows of its own models. `--explain` says what was found.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "tensor", 2 }, { "data", 1 } },  -- data takes the ranks that are left
  m.tensor_parallel { planned = true },
}
