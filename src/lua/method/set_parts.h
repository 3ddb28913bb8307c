// Sets the parts of a plan as a script gives them. Each merges its fields into the plan's own and
// resolves patterns of scopes, parameters and ops as the built-in methods do. Throws Error with the
// area "method" where plan::verify would refuse the part, or a field or pattern is unknown.
// Settings that other parts must fit, which later methods may still make, are left to plan::verify.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "methods/method.h"

namespace perigee::lua {

// A table's fields, and its list part where the part has one.
using Given = methods::Json;

// Returns the number of regions.
int64_t set_recompute(plan::Plan& plan, const methods::PlanRequest& request, const Given& given);
void set_offload(plan::Plan& plan, const methods::PlanRequest& request, const Given& given);
void set_overlap(plan::Plan& plan, const methods::PlanRequest& request, const Given& given);
void set_communication(plan::Plan& plan, const methods::PlanRequest& request, const Given& given);
// Returns the number of stages. The plan stays without a pipeline where that is 1.
int64_t set_pipeline(plan::Plan& plan, const methods::PlanRequest& request, const Given& given);
void set_precision(plan::Plan& plan, const methods::PlanRequest& request, const Given& given);
// Appends units, a list of tables. Returns the number of all units of the plan.
int64_t add_units(plan::Plan& plan, const methods::PlanRequest& request, const Given& given);

// Applies a method, "fsdp" with its config, to the plan; `defined`: methods besides the built-in
// ones. Throws Error as the method does, and for parallel_mode, since the mesh of a plan that is
// edited does not change.
struct UsedMethod {
  std::string name;
  methods::Json config;
};
void use_method(plan::Plan& plan, const methods::PlanRequest& request, const UsedMethod& used,
                std::span<const std::shared_ptr<const methods::Method>> defined);

}  // namespace perigee::lua
