#include "compile/graph/fuse/narrow_gradients.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "compile/gradients/state.h"
#include "compile/gradients/tensor_step.h"
#include "compile/graph/fuse/readers.h"
#include "compile/graph/fuse/skip_cast.h"
#include "optim/optimizers.h"

namespace perigee::compile {
namespace {

using graph::Output;

// Returns whether nothing adds to or scales gradients between the microbatch and the step.
bool steps_at_once(const plan::Plan& plan, const StepSpec& spec) {
  return optimizer_of(spec) && !steps_by_tensor(spec) && plan.microbatches == 1 &&
         !plan.pipeline.cuts() && !plan.overlap.accumulate && !plan.communication.clip_first;
}

bool in_unit(const plan::Plan& plan, const std::string& parameter) {
  return std::ranges::any_of(plan.units, [&](const plan::Unit& unit) {
    return mesh::group_size(plan.mesh, unit.axes) > 1 &&
           std::ranges::find(unit.parameters, parameter) != unit.parameters.end();
  });
}

// Returns whether the ranks' gradients are summed.
bool is_reduced(const plan::Plan& plan, const mesh::Placements& placements) {
  return !axes_where(plan.mesh, placements, mesh::Placement::Kind::partial).empty();
}

}  // namespace

void narrow_gradients(Local& local, const plan::Plan& plan, const StepSpec& spec) {
  if (!steps_at_once(plan, spec)) return;
  auto& graph = local.graph.graph;
  const auto readers = count_readers(graph);
  std::map<std::string_view, int> summands;
  for (const auto& output : graph.outputs) {
    if (output.kind == Output::Kind::gradient) ++summands[output.name];
  }
  for (size_t o = 0; o < graph.outputs.size(); ++o) {
    auto& output = graph.outputs[o];
    if (output.kind != Output::Kind::gradient || !output.value.defined() ||
        summands[output.name] > 1 || is_reduced(plan, local.graph.outputs[o]) ||
        in_unit(plan, output.name)) {
      continue;
    }
    const auto low = skip_cast(graph, readers, output.value);
    if (low.defined()) output.value = low;
  }
  graph = graph::eliminate_dead_code(std::move(graph));
}

}  // namespace perigee::compile
