// The reduction of a bucket's gradients, in their own or a lower precision.
#include "compile/gradients/reduce.h"

#include "compile/draft/collective.h"
#include "compile/draft/source.h"
#include "compile/gradients/gradients.h"

namespace perigee::compile {

namespace {

ValueId reduced(const Bucket& bucket) { return bucket.level == 0 ? bucket.gradients : bucket.part; }

DraftInstruction copy(ValueId to, ValueId from, double scale) {
  return in_place("perigee::copy_", {{"self", to}, {"source", from}, {"scale", scale}}, {to});
}

}  // namespace

std::optional<graph::DType> reduced_type(const Source& source, graph::DType gradients) {
  const auto& low = source.plan.communication.reduce_dtype;
  if (!low || graph::size_of(gradients) <= graph::size_of(*low)) return std::nullopt;
  return low;
}

bool clips_first(const Source& source) {
  const auto& plan = source.plan;
  return plan.communication.clip_first && source.spec.clip_norm.value_or(0) > 0 &&
         mesh::group_size(plan.mesh, plan.batch_axes) > 1;
}

void start_reduction(Draft& draft, const Source& source, const Bucket& bucket,
                     const std::string& reduce, uint8_t when, std::vector<DraftInstruction>& out) {
  auto value = reduced(bucket);
  if (bucket.low.defined()) {
    out.push_back(copy(bucket.low, value, source.plan.communication.reduce_scale));
    out.back().when = when;
    value = bucket.low;
  }
  out.push_back(all_reduce(draft, value, Stream::over(bucket.axes, bucket.channel), reduce));
  out.back().when = when;
}

void end_reduction(const Source& source, const Bucket& bucket, std::vector<DraftInstruction>& out) {
  if (!bucket.low.defined()) return;
  out.push_back(copy(reduced(bucket), bucket.low, 1 / source.plan.communication.reduce_scale));
}

}  // namespace perigee::compile
