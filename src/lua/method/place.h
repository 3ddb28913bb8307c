// Placements and copies that a script's method sets. Throws Error with the area "method" for names,
// axes and placements that the plan or its graph lacks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "methods/method.h"

namespace perigee::lua {

// "S0" on "tensor".
struct AxisPlacement {
  std::string axis;
  std::string placement;
};

// Places the parameters and inputs whose names match. Returns their number.
int64_t place_inputs(plan::Plan& plan, const methods::PlanRequest& request,
                     const std::string& match, const AxisPlacement& at);
// Pins values that ops compute, by the names of graph::value_names; other axes stay open.
void pin_values(plan::Plan& plan, const methods::PlanRequest& request,
                const std::vector<std::string>& values, const AxisPlacement& at);
// Pins the activations of earlier parts that a part of the pipeline (from 0) reads. Returns
// how many.
int64_t place_sent(plan::Plan& plan, const methods::PlanRequest& request, int64_t part,
                   const AxisPlacement& at);
// Shards the batch on these axes.
void set_batch_axes(plan::Plan& plan, const std::string& axes);
// Lets the ranks of these axes train copies of the model. Returns the number of copies.
int64_t set_copies(plan::Plan& plan, const std::string& axes);
// Averages the parameters whose names match. Returns their number.
int64_t add_average(plan::Plan& plan, const methods::PlanRequest& request, const std::string& match,
                    plan::Average average);
// Multiplies the loss by `scale` in the backward pass; nothing: by the scale given for each step.
void scale_loss(plan::Plan& plan, std::optional<double> scale);

}  // namespace perigee::lua
