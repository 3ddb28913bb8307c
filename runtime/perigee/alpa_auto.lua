-- Automatic stages of perigee.alpa: options of solver.stage_table, and the strategy that it finds.
local candidates = require "perigee.candidates"
local dialect = require "perigee.dialect"
local solver = require "perigee.solver"

local M = {}

-- Makes the batch's axis vary fastest.
function M.data_first(axes)
  for _, submesh in ipairs(axes.submeshes or {}) do M.data_first(submesh) end
  for i, axis in ipairs(axes) do
    if axis[1] == "data" then table.insert(axes, 1, table.remove(axes, i)) return end
  end
end

-- Records the options of the table. `o`: the layers (their number or scopes; nil: chosen), the schedule, and whether
-- stages may only split the batch.
function M.plan(draft, given, o)
  local pipe, auto, sharding = given.PipeshardParallel, given.AutoStageOption, given.AutoShardingOption
  if pipe.stage_input_shardings then
    dialect.fail_of("stage_input_shardings", "stage_input_shardings has a table for each given stage, but stage_option "
      .. "finds them: give stage_option the stages that were found (ManualStageOption)")
  end
  local views = auto.submesh_logical_shape_space
  if o.data_only then
    if draft.given.AutoStageOption and draft.given.AutoStageOption.submesh_logical_shape_space then
      draft:warn("[alpa] submesh_logical_shape_space has no effect: the sharding option splits only the batch")
    end
    views = "data_parallel_only"
  end
  draft.search = true
  draft.swapped = sharding.force_batch_dim_to_mesh_dim == 1
  if type(o.layers) == "number" then draft.layers = o.layers end
  local submeshes = auto.submesh_physical_shape_space
  draft.stages = {
    layers = o.layers, tolerance = given.AutoLayerOption.eps, microbatches = pipe.num_micro_batches,
    submeshes = submeshes == "manual" and auto.manually_specified_submeshes or submeshes, views = views,
    choose = {}, schedule = o.schedule, profile = auto.layer_profile_mode,
    imbalance = auto.stage_imbalance_tolerance, estimated = auto.use_hlo_cost_model or nil, forbid = draft.forbid,
    file = auto.cached_profile_result and draft:beside(auto.cached_profile_result) or nil,
  }
end

-- Records given stages whose axes and shardings the solver chooses, for the ranks of the run. `cut`: fields of
-- pipeline_parallel.
function M.open(draft, given, stages, cut, schedule)
  local layers, counts = cut.starts or cut.layers, cut.part_layers
  if not counts then
    counts = {}
    for i = 1, stages do counts[i] = cut.starts and 1 or cut.layers / stages end
  end
  draft.given_stages = {
    layers = layers, tolerance = given.AutoLayerOption.eps, stage_layers = counts, choose = {},
    microbatches = given.PipeshardParallel.num_micro_batches, schedule = schedule, forbid = draft.forbid,
  }
end

-- Returns whether a run of so many ranks has several for each given stage, and the same number.
function M.opens(draft, ranks)
  local stages = draft.given_stages and #draft.given_stages.stage_layers
  return stages and ranks and ranks > stages and ranks % stages == 0
end

-- Returns the strategy of the best stages, with these methods.
function M.found(draft, methods, table_options)
  local options = {}
  for name, value in pairs(table_options or draft.stages) do options[name] = value end
  options.methods = methods
  local found, why = solver.stage_table(options)
  if not found then error("[alpa] " .. why, 0) end
  local strategy = found.strategy
  local mesh = candidates.fields_of(strategy, "parallel_mode")
  if draft.swapped then M.data_first(mesh) end
  if draft.ranks then
    local order = {}
    for i = 1, #draft.ranks do order[i] = draft.ranks[(mesh.order and mesh.order[i] or i - 1) + 1] end
    mesh.order = order
  end
  return strategy
end

return M
