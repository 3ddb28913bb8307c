#include "schedule/of_plan.h"

namespace perigee {

Schedule schedule_of(const plan::Plan& plan) {
  const auto& pipeline = plan.pipeline;
  ScheduleOptions options;
  options.name = pipeline.schedule;
  options.stages = static_cast<int>(plan.mesh.size_of(pipeline.axis));
  options.microbatches = static_cast<int>(plan.microbatches);
  options.chunks = static_cast<int>(pipeline.chunks);
  if (pipeline.group > 0) options.group = static_cast<int>(pipeline.group);
  options.extra = static_cast<int>(pipeline.extra);
  options.delay_weights = plan.overlap.weights;
  options.forward = pipeline.forward;
  options.backward = pipeline.backward;
  options.wgrad = pipeline.weights;
  options.transfer = pipeline.transfer;
  return make_schedule(options);
}

std::vector<int> stage_of_parts(const plan::Plan& plan) {
  const auto& pipeline = plan.pipeline;
  return stage_of_parts(pipeline.schedule, static_cast<int>(plan.mesh.size_of(pipeline.axis)),
                        static_cast<int>(pipeline.chunks));
}

}  // namespace perigee
