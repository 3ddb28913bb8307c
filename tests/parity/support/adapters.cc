#include "tests/parity/support/adapters.h"

#include "exec/tensor.h"
#include "graph/adapters/adapters.h"
#include "tests/parity/support/ranks.h"

namespace perigee::parity {

Given with_adapters(const Given& given, const std::string& config) {
  const auto plan = plan_of(given, R"([["lora", )" + config + "]]", /*rows=*/1);
  Given adapted{graph::adapt(given.graph, *plan.adapters), given.inputs};
  for (const auto& weight : plan.adapters->weights) {
    for (const auto& name : {graph::adapter_a(weight), graph::adapter_b(weight)}) {
      const auto& type = adapted.graph.type(adapted.graph.find_input(name)->value);
      adapted.inputs[name] =
          (0.3 * at::randn(type.shape, at::kDouble)).to(exec::scalar_type(type.dtype));
    }
  }
  return adapted;
}

}  // namespace perigee::parity
