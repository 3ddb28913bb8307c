#include "tests/parity/rules/support_plan.h"

#include <fmt/format.h>

#include "tests/parity/support/support.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {

plan::Plan random_plan(const graph::Graph& graph, std::mt19937_64& random, bool pin_values) {
  plan::Plan plan;
  plan.mesh.axes.push_back({"data", any(random, 1, 4)});
  if (any(random, 0, 1)) {
    plan.mesh.axes.insert(plan.mesh.axes.begin(), {"tensor", any(random, 2, 3)});
  }
  place_randomly(plan, graph, random, pin_values);
  return plan;
}

std::string compare(const Given& given, const plan::Plan& plan, const exec::Tensors& expected) {
  std::string text;
  try {
    const auto outputs = evaluate_ranks(partition_all(given.graph, plan), plan.mesh, given.inputs,
                                        {.seed = 3});
    for (const auto& [name, tensor] : expected) {
      const auto first_difference = difference(outputs.at(name), tensor, 1e-10);
      if (!first_difference.empty()) text += fmt::format("{}: {}\n", name, first_difference);
    }
  } catch (const std::exception& error) {
    text += error.what();
  }
  return text;
}

}  // namespace perigee::parity
