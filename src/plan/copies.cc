#include "plan/copies.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/fail.h"

namespace perigee::plan {
namespace {

bool has(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

void verify_axes(const Plan& plan) {
  std::vector<std::string> known;
  for (const auto& axis : plan.mesh.axes) known.push_back(axis.name);
  for (const auto& axis : plan.copy_axes) {
    const int at = plan.mesh.find(axis);
    if (at < 0) {
      fail("plan", "copies are over axes of the mesh, but got \"{}\"{}", axis,
           did_you_mean(axis, known));
    }
    if (plan.batch_axes.contains(axis)) {
      fail("plan", "ranks that train copies have batches of their own, but the batch is over {}",
           axis);
    }
    if (plan.pipeline.axis == axis) {
      fail("plan", "ranks that train copies have all stages each, but the pipeline is over {}",
           axis);
    }
    for (const auto& unit : plan.units) {
      if (!unit.axes.contains(axis)) continue;
      fail("plan",
           "ranks that train copies step whole weights of their own, but {} is cut over {} by "
           "zero1, zero2 or fsdp: give it another axis (zero)",
           unit.name, axis);
    }
    for (const auto& [name, placements] : plan.placements) {
      const auto& p = placements[static_cast<size_t>(at)];
      if (p.is_replicate() || p.is_open()) continue;
      fail("plan", "nothing is sharded over an axis of copies, but {} is placed as {} on {}", name,
           mesh::to_string(p), axis);
    }
  }
}

void verify_average(const Average& average, const mesh::AxisSet& axes,
                    const std::vector<std::string>& parameters) {
  if (average.every < 1) {
    fail("plan", "copies are averaged every step or more seldom, but every is {}", average.every);
  }
  if (average.axes.empty()) fail("plan", "copies are averaged over some axis, but axes is empty");
  for (const auto& axis : average.axes) {
    if (axes.contains(axis)) continue;
    fail("plan", "averages are over axes of copies, but got \"{}\"{}", axis,
         did_you_mean(axis, axes.names()));
  }
  std::set<std::string> seen;
  for (const auto& name : average.parameters) {
    if (!has(parameters, name)) {
      fail("plan", "averages name parameters of the graph, but got \"{}\"{}", name,
           did_you_mean(name, parameters));
    }
    if (!seen.insert(name).second) {
      fail("plan", "an average names a parameter once, but got \"{}\" twice", name);
    }
  }
}

}  // namespace

int64_t copies_of(const Plan& plan) {
  int64_t copies = 1;
  for (const auto& axis : plan.copy_axes) copies *= plan.mesh.size_of(axis);
  return copies;
}

void verify_copies(const Plan& plan, const graph::Graph& graph) {
  verify_axes(plan);
  std::vector<std::string> parameters;
  for (const auto& input : graph.inputs) {
    if (input.kind == graph::Input::Kind::parameter) parameters.push_back(input.name);
  }
  for (const auto& average : plan.averages) verify_average(average, plan.copy_axes, parameters);
  if (copies_of(plan) == 1) return;
  for (const auto& average : plan.averages) {
    if (!plan.offload.parameters && !(plan.offload.optimizer && average.states)) continue;
    fail("plan",
         "tensors that copies average stay on the device, but offload keeps {} on the host: leave "
         "it out, or average without states",
         plan.offload.parameters ? "parameters" : "the optimizer's states");
  }
  if (plan.precision.guards()) {
    fail("plan",
         "all ranks skip a step or none does, but copies overflow independently: use bfloat16 "
         "without a loss scale where ranks train copies over {}",
         plan.copy_axes.text());
  }
  if (plan.communication.clip_first) {
    fail("plan",
         "each copy clips its own gradient anyway: leave communication.clip_first out, or the "
         "copies");
  }
}

void verify_communication(const Plan& plan) {
  const auto& communication = plan.communication;
  for (const auto n : {communication.prefetch_forward, communication.prefetch_backward,
                       communication.prefetch_bytes, communication.buckets}) {
    if (n < 0) {
      fail("plan", "communication.prefetch_* and buckets are at least 0, but got {}", n);
    }
  }
  if (communication.bucket_bytes < 1) {
    fail("plan", "communication.bucket_bytes is at least 1, but got {}",
         communication.bucket_bytes);
  }
  if (communication.communicators < 1 || communication.communicators > 64) {
    fail("plan", "communication.communicators is 1 to 64, but got {}", communication.communicators);
  }
  const auto& dtype = communication.reduce_dtype;
  if (dtype && *dtype != graph::DType::float16 && *dtype != graph::DType::bfloat16) {
    fail("plan", "communication.reduce_dtype is float16 or bfloat16, but got {}",
         graph::name_of(*dtype));
  }
  const double scale = communication.reduce_scale;
  if (!(scale > 0) || !std::isfinite(scale)) {
    fail("plan", "communication.reduce_scale is a number above 0, but got {}", scale);
  }
  if (scale != 1 && !dtype) {
    fail("plan", "communication.reduce_scale {} needs a reduce_dtype", scale);
  }
  if (!communication.clip_first) return;
  if (!plan.units.empty()) {
    fail("plan",
         "a rank that clips before the reduction has its whole gradient, but {} keeps parts of it: "
         "clip after the reduction, or leave zero1, zero2 and fsdp out",
         plan.units.front().name);
  }
  if (plan.precision.guards()) {
    fail("plan",
         "whether a step is skipped is read off the norm of reduced gradients, but "
         "communication.clip_first clips before: use bfloat16, without a loss scale");
  }
}

}  // namespace perigee::plan
