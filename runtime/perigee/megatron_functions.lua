-- The functions of a ModelParallelConfig, for perigee.megatron: timers, which observe the training, the scale of the
-- loss, and hooks of the gradients' and parameters' communication, which edit the plan.
local dialect = require "perigee.dialect"
local methods = require "perigee.methods"

local M = {}

-- Timers ------------------------------------------------------------------------------------------------------------

-- Adds an interval to a timer: its count, and its total, least and most seconds.
local function note(timers, name, seconds)
  local timer = timers[name]
  if not timer then
    timer = { name = name, count = 0, total = 0, min = seconds, max = seconds }
    timers[name] = timer
    timers[#timers + 1] = timer
  end
  timer.count, timer.total = timer.count + 1, timer.total + seconds
  timer.min, timer.max = math.min(timer.min, seconds), math.max(timer.max, seconds)
end

-- Returns the timers of a step's report at a level, as Megatron-Core's: 0 has the step, 1 also its phases, 2 also each
-- section of a microbatch.
local function timers_of(report, level)
  local timers, first, last, phase = {}, math.huge, 0, { begin = math.huge, ["end"] = 0 }
  for _, section in ipairs(report.sections) do
    first, last = math.min(first, section.begin), math.max(last, section["end"])
    if section.name ~= "step" then
      phase.begin, phase["end"] = math.min(phase.begin, section.begin), math.max(phase["end"], section["end"])
    end
  end
  if last > 0 then note(timers, "interval-time", last - first) end
  if level >= 1 then
    if phase["end"] > 0 then note(timers, "forward-backward", phase["end"] - phase.begin) end
    for _, collective in ipairs(report.collectives) do
      local name = collective.what == "gradients" and "all-grads-sync" or "params-all-gather"
      note(timers, name, collective["end"] - collective.begin)
    end
    for _, section in ipairs(report.sections) do
      if section.name == "step" then note(timers, "optimizer", section["end"] - section.begin) end
    end
  end
  if level >= 2 then
    for _, section in ipairs(report.sections) do
      if section.name ~= "step" then note(timers, section.name, section["end"] - section.begin) end
    end
  end
  local list = {}
  for i, timer in ipairs(timers) do list[i] = timer end
  return list
end

-- Timers { log_level = 1, log = print }: a function for the option timers. log is called on rank 0 after each step with
-- { step, timers }, a list of { name, count, total, min, max } in seconds.
M.Timers = dialect.at_user(function(given)
  if type(given) ~= "table" or type(given.log) ~= "function" then
    dialect.fail("[megatron] Timers takes { log_level = 1, log = function }, but got %s", dialect.show(given))
  end
  for key in pairs(given) do
    if key ~= "log" and key ~= "log_level" then
      dialect.fail("[megatron] Timers has log_level and log, but got %s", dialect.show(key))
    end
  end
  local level = given.log_level or 0
  if level ~= 0 and level ~= 1 and level ~= 2 then
    dialect.fail("[megatron] Timers' log_level must be 0 (the step), 1 (its phases) or 2 (each section), but got %s",
      dialect.show(level))
  end
  return function(report) given.log { step = report.step, timers = timers_of(report, level) } end
end)

function M.observe(draft, o)
  if o.timers then draft.events = { step = function(report) o.timers(report) end } end
end

-- The loss's scale ----------------------------------------------------------------------------------------------------

methods.define {
  name = "megatron_scale_loss",
  doc = "The loss is multiplied by what grad_scale_func returns, whatever it is computed in.",
  apply = function(plan)
    plan:scale_loss "given"
    plan:note "the loss is scaled by what grad_scale_func returns for each step"
  end,
}

-- A function that returns a scaled loss returns the scale for a loss of 1.
function M.scale_loss(draft, o)
  if not o.grad_scale_func then return end
  draft.events = draft.events or {}
  draft.events.loss_scale = function(step) return o.grad_scale_func(1, step) end
  if o.bf16 then
    draft:use("half", { loss_scale = "given" })
  elseif o.enable_autocast then
    draft:use("amp_native", { loss_scale = "given" })
  else
    draft:use("megatron_scale_loss")
  end
end

-- Hooks ---------------------------------------------------------------------------------------------------------------

-- By option: the part of a plan that the hook is for.
local hooks = {
  finalize_model_grads_func = "plan:average, plan:communication: work on gradients after the last microbatch",
  no_sync_func = "plan:communication: microbatches whose gradients are not reduced",
  grad_sync_func = "plan:communication, plan:overlap: when and how gradients are reduced",
  param_sync_func = "plan:units, plan:overlap: when parameters are gathered",
}
local given = {}  -- the functions of all configs of the script

local function same(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  for key, value in pairs(a) do
    if not same(value, b[key]) then return false end
  end
  for key in pairs(b) do
    if a[key] == nil then return false end
  end
  return true
end

local function without_notes(plan)
  local copy = plan:get()
  copy.decisions = nil
  return copy
end

for option, part in pairs(hooks) do
  methods.define {
    name = "megatron_" .. option,
    doc = option .. "(plan, request) edits the plan, once, before the training.",
    fields = {
      number = { type = "integer", required = true, doc = "position among the functions of all configs" },
    },
    apply = function(plan, config, request)
      local before = without_notes(plan)
      given[config.number](plan, request)
      if same(before, without_notes(plan)) then
        local text = "[megatron] %s is called once, with the plan, and edits it (%s), but it left the plan as it was: "
          .. "no hook runs within a step; timers observes steps"
        error(string.format(text, option, part), 0)
      end
      plan:note(option .. " has edited the plan")
    end,
  }
end

function M.edit(draft, o)
  for option in pairs(hooks) do
    if o[option] then
      given[#given + 1] = o[option]
      draft:use("megatron_" .. option, { number = #given }, option)
    end
  end
end

return M
