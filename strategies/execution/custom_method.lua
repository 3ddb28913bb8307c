-- A user-defined method: no rank runs more than a given number of samples at once. It computes the
-- number of microbatches from the batch and the mesh, where gradient_accumulation has a fixed number.
-- When to use it: as the pattern for decisions that a script computes; `perigee check` tries it.
local m = require "perigee.methods"

local at_most = m.define {
  name = "at_most",
  doc = "Runs at most `samples` samples at once on each data rank.",
  fields = { samples = { type = "integer", required = true, doc = "of one microbatch" } },
  check = function(config)
    if config.samples < 1 then error("at_most: samples must be at least 1, but got " .. config.samples) end
  end,
  apply = function(plan, config, request)
    local ranks = 1
    for _, axis in ipairs(request.mesh) do
      if axis[1] == "data" then ranks = axis[2] end
    end
    local share = request.global_batch / ranks
    local count = 1
    while share / count > config.samples or share % count ~= 0 do
      if count > share then error("at_most: a batch of " .. request.global_batch ..
        " must divide over " .. ranks .. " ranks") end
      count = count + 1
    end
    plan:microbatches(count)
    plan:note(string.format("%d samples of a rank run as %d microbatches", share, count))
  end,
}

return {
  m.parallel_mode {},
  at_most { samples = 4 },
}
