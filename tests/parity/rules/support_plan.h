// Random plans for captured graphs, and a check of their results.
#pragma once

#include <random>
#include <string>

#include "exec/reference/reference.h"
#include "plan/plan.h"
#include "tests/parity/support/models.h"

namespace perigee::parity {

// Random axes, placed by place_randomly.
plan::Plan random_plan(const graph::Graph& graph, std::mt19937_64& random, bool pin_values);

// Returns "" if all ranks together give the expected losses, gradients, buffers and results (to
// 1e-10), else the first difference, or the text of an exception.
std::string compare(const Given& given, const plan::Plan& plan, const exec::Tensors& expected);

}  // namespace perigee::parity
