// The parts of a plan that functions of perigee.Plan take as tables. Fields have the names and
// meaning of plan/plan.h; each part is one table of fields, from which checks, editor types and the
// reference follow.
#pragma once

#include <string>
#include <vector>

#include "methods/field_table.h"
#include "plan/plan.h"

namespace perigee::lua {

const methods::FieldTable<plan::Recompute>& recompute_part();
const methods::FieldTable<plan::Offload>& offload_part();
const methods::FieldTable<plan::Overlap>& overlap_part();
const methods::FieldTable<plan::Communication>& communication_part();
const methods::FieldTable<plan::Pipeline>& pipeline_part();
const methods::FieldTable<plan::LossScale>& loss_scale_part();
const methods::FieldTable<plan::Precision>& precision_part();
const methods::FieldTable<plan::Unit>& unit_part();

// A part for editor types and the reference.
struct PlanPart {
  std::string name;  // "perigee.Recompute"
  std::string doc;
  const std::vector<methods::ConfigField>* fields = nullptr;
  std::string items = {};  // meaning of its list part; "": it has none
};
std::vector<PlanPart> plan_parts();

}  // namespace perigee::lua
