-- Local SGD (Stich 2019): every rank of an axis steps with its own gradients, clipped by their own
-- norm, and the ranks' weights are averaged every k steps. Losses are the ranks' averages.
-- When to use it: on slow networks. It communicates 1/k of the bytes of data parallelism; its result
-- differs from that of one device. The method below is user-defined, with perigee.methods.define.
local m = require "perigee.methods"

local local_sgd = m.define {
  name = "local_sgd",
  doc = "Each rank of an axis steps by itself; weights are averaged every so many steps.",
  fields = {
    axis = { type = "string", default = "data", doc = "whose ranks train apart; a list: \"data,node\"" },
    every = { type = "integer", default = 8, doc = "steps between two averages" },
    match = { type = "string", default = "**", doc = "parameters that are averaged; others stay apart" },
    states = { type = "boolean", default = false, doc = "average the optimizer's states, too" },
  },
  check = function(config)
    if config.every < 1 then error("local_sgd: every must be at least 1, but got " .. config.every) end
  end,
  apply = function(plan, config)
    local copies = plan:copies(config.axis)
    local count = plan:average(config.match, config.axis, config.every, config.states)
    plan:note(string.format("%d ranks of %s step by themselves; %d parameters%s are averaged every %d steps", copies,
      config.axis, count, config.states and " and their states" or "", config.every))
  end,
}

return {
  m.parallel_mode {},
  local_sgd { every = 2 },
}
