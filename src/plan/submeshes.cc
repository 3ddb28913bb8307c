// Plans whose stages have submeshes of unequal sizes.
#include <numeric>
#include <string>

#include "base/fail.h"
#include "plan/pipeline.h"

namespace perigee::plan {
namespace {

[[noreturn]] void refuse(std::string_view what, std::string_view remedy) {
  fail("plan",
       "stages have submeshes of unequal sizes, but {}: {}, or make the submeshes identical", what,
       remedy);
}

}  // namespace

Plan of_stage(const Plan& plan, int64_t stage) {
  auto own = plan;
  own.mesh = mesh::of_stage(plan.mesh, stage);
  return own;
}

bool splits_more_than_batch(const Plan& plan) {
  for (int64_t stage = 0; stage < std::ssize(plan.mesh.stages); ++stage) {
    if (splits_more_than_batch(of_stage(plan, stage))) return true;
  }
  if (plan.mesh.is_ragged()) return false;
  const auto ranks = plan.mesh.size() / plan.mesh.size_of(plan.pipeline.axis);
  return ranks > mesh::group_size(plan.mesh, plan.batch_axes);
}

int64_t batch_ranks(const Plan& plan) {
  int64_t ranks = plan.mesh.is_ragged() ? 1 : mesh::group_size(plan.mesh, plan.batch_axes);
  for (int64_t stage = 0; stage < std::ssize(plan.mesh.stages); ++stage) {
    ranks = std::lcm(ranks, mesh::group_size(mesh::of_stage(plan.mesh, stage), plan.batch_axes));
  }
  return ranks;
}

void verify_submeshes(const Plan& plan) {
  const auto& mesh = plan.mesh;
  if (!mesh.is_ragged()) return;
  const auto& outer = mesh.axes.back().name;
  if (plan.pipeline.axis != outer) {
    fail("plan",
         "submeshes of unequal sizes are the stages of a pipeline over {}, but {}: use "
         "pipeline_parallel over {}",
         outer,
         plan.pipeline.cuts() ? "the pipeline is over " + plan.pipeline.axis : "there is none",
         outer);
  }
  if (!plan.copy_axes.empty()) {
    refuse("ranks train copies over " + plan.copy_axes.text(), "leave local_sgd out");
  }
  if (plan.communication.clip_first) {
    refuse("each data rank clips its own gradient", "clip after the reduction");
  }
  for (int64_t stage = 1; stage < std::ssize(mesh.stages) && plan.communication.sum; ++stage) {
    if (mesh::group_size(mesh::of_stage(mesh, stage), plan.batch_axes) ==
        mesh::group_size(mesh::of_stage(mesh, 0), plan.batch_axes)) {
      continue;
    }
    refuse("gradients are to be summed over data ranks, of which stages have different numbers",
           "leave grad_comm's reduce = \"sum\" out");
  }
  if (plan.overlap.experts) {
    refuse("expert exchanges are to be interleaved", "leave overlap's experts out");
  }
  if (plan.fp8 && !plan.fp8->reduce_amax) {
    refuse("each rank is to have eight-bit histories of its own",
           "leave fp8's reduce_amax = false out");
  }
  for (const auto& name : plan.forbidden) {
    if (name != "replicated_parameters") continue;
    refuse("replicated_parameters is forbidden", "leave it out of forbid");
  }
}

}  // namespace perigee::plan
