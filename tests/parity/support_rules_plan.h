// Random plans for captured graphs, and what they must give.
#pragma once

#include <random>
#include <string>

#include "exec/reference.h"
#include "plan/plan.h"
#include "tests/parity/support_models.h"

namespace perigee::parity {

// Random axes, placed by place_randomly.
plan::Plan random_plan(const graph::Graph& graph, std::mt19937_64& random, bool pin_values);

// Returns "" when all ranks together give the expected losses, gradients, buffers and results (to
// 1e-10), else what differs; an exception's text where one is thrown.
std::string compare(const Given& given, const plan::Plan& plan, const exec::Tensors& expected);

}  // namespace perigee::parity
