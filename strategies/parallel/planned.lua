-- Planned tensor parallelism: the exact solver chooses which weights are sharded over the ranks of an
-- axis, and along which dim, such that compute and communication cost least.
-- When to use it: a model of your own whose layers Perigee does not know, or to compare with the
-- built-in patterns of its own models. `--explain` prints the chosen shardings.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "tensor", 2 }, { "data", 1 } },  -- data takes the remaining ranks
  m.tensor_parallel { planned = true },
}
