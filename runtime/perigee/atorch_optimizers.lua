-- torch.optim's optimizers and schedules of the learning rate, for perigee.atorch: their names, arguments and defaults
-- as keys of the job's [optimizer] and [lr_schedule].
local dialect = require "perigee.dialect"
local host = require "perigee.host"

local M = {}

-- The defaults of each optimizer, which are those of torch.optim (lion: of its paper). torch clips no gradients.
local defaults = {
  sgd = { lr = 1e-3, weight_decay = 0, momentum = 0, dampening = 0, nesterov = false },
  adam = { lr = 1e-3, weight_decay = 0, betas = { 0.9, 0.999 }, eps = 1e-8 },
  adamw = { lr = 1e-3, weight_decay = 0.01, betas = { 0.9, 0.999 }, eps = 1e-8 },
  rmsprop = { lr = 0.01, weight_decay = 0, momentum = 0, alpha = 0.99, eps = 1e-8, centered = false },
  adagrad = { lr = 0.01, weight_decay = 0, eps = 1e-10, lr_decay = 0, initial_accumulator_value = 0 },
  adamax = { lr = 2e-3, weight_decay = 0, betas = { 0.9, 0.999 }, eps = 1e-8 },
  nadam = { lr = 2e-3, weight_decay = 0, betas = { 0.9, 0.999 }, eps = 1e-8, momentum_decay = 4e-3,
    decoupled_weight_decay = false },
  radam = { lr = 1e-3, weight_decay = 0, betas = { 0.9, 0.999 }, eps = 1e-8, decoupled_weight_decay = false },
  adafactor = { lr = 0.01, weight_decay = 0, beta2_decay = -0.8, clip_threshold = 1 },
  muon = { lr = 1e-3, weight_decay = 0.1, momentum = 0.95, nesterov = true, ns_steps = 5 },
  lion = { lr = 1e-4, weight_decay = 0, betas = { 0.9, 0.99 } },
}

-- Arguments of torch.optim under other names, and those of its implementations, which change no result.
local renamed = { adafactor = { d = "clip_threshold" } }
local idle = { foreach = true, fused = true, capturable = true, differentiable = true }

-- Returns the job's name of an optimizer ("torch.optim.NAdam", "nadam").
function M.optimizer(text)
  return (text:gsub("^torch%.optim%.", ""):gsub("^optim%.", ""):lower())
end

-- Sets the keys of an optimizer's arguments. Errors stand at `option`.
function M.set_arguments(draft, name, arguments, option)
  for key, value in pairs(arguments) do
    if idle[key] then
      draft:warn("[atorch] %s.%s has no effect: there is one implementation", option, key)
    else
      draft:job("optimizer." .. ((renamed[name] or {})[key] or key), value)
    end
  end
end

-- Sets the optimizer and torch's defaults of the arguments that are not given.
function M.set_optimizer(draft, text, arguments)
  local name, own = M.optimizer(text), {}
  draft:job("optimizer.name", name)
  for key in pairs(arguments) do own[(renamed[name] or {})[key] or key] = true end
  for key, value in pairs(defaults[name] or {}) do
    if not own[key] then draft:job("optimizer." .. key, value) end
  end
  if not own.clip_norm then draft:job("optimizer.clip_norm", 0) end
end

-- Schedules ---------------------------------------------------------------------------------------------------------

-- Classes of torch.optim.lr_scheduler, and functions of transformers: the kind, the keys of their arguments, and the
-- keys of the arguments that they leave out.
local transformers = { num_warmup_steps = "warmup", num_training_steps = "steps", num_decay_steps = "decay",
  min_lr = "min_lr" }
local schedules = {
  cosineannealinglr = { "cosine", { T_max = "steps", eta_min = "min_lr" }, { warmup = 0, min_lr = 0 } },
  get_constant_schedule = { "constant", {}, { warmup = 0 } },
  get_constant_schedule_with_warmup = { "constant", transformers, { warmup = 0 } },
  get_linear_schedule_with_warmup = { "linear", transformers, { warmup = 0, min_lr = 0 } },
  get_cosine_schedule_with_warmup = { "cosine", transformers, { warmup = 0, min_lr = 0 } },
  get_inverse_sqrt_schedule = { "inverse_sqrt", transformers, { warmup = 0, min_lr = 0 } },
  get_wsd_schedule = { "wsd", transformers, { warmup = 0, min_lr = 0, shape = "cosine" } },
}
M.kinds = { "constant", "linear", "cosine", "inverse_sqrt", "wsd" }

local function known_schedule(text)
  return schedules[(text:lower():gsub("^.*%.", ""))]
end

-- Returns the error of a schedule's name.
function M.check_schedule(text)
  local names = {}
  for i, kind in ipairs(M.kinds) do
    if kind == text:lower() then return nil end
    names[i] = kind
  end
  if known_schedule(text) then return nil end
  names[#names + 1] = "CosineAnnealingLR"
  for name in pairs(schedules) do
    if name:find("^get_") then names[#names + 1] = name end
  end
  table.sort(names)
  return "is one of " .. table.concat(names, ", ") .. host.suggest(text, names)
end

-- Sets the schedule of that name and its arguments.
function M.set_schedule(draft, text, arguments)
  local of = known_schedule(text) or { text:lower(), {}, {} }
  draft:job("lr_schedule.kind", of[1])
  local given = {}
  for key, value in pairs(arguments) do
    local name = of[2][key] or key
    given[name] = true
    draft:job("lr_schedule." .. name, value)
  end
  for key, value in pairs(of[3]) do
    if not given[key] then draft:job("lr_schedule." .. key, value) end
  end
end

-- Without a schedule the learning rate stays as it is.
function M.keep_rate(draft)
  draft:job("lr_schedule.kind", "constant")
  draft:job("lr_schedule.warmup", 0)
end

-- Raises an error unless the optimizer function returned a name.
function M.check_returned(name)
  if type(name) ~= "string" then
    dialect.fail("optim_func returns a name and options, but got %s", dialect.show(name))
  end
end

return M
