#include "capture/record/op.h"

#include <unordered_map>

#include "capture/device/tensor.h"

namespace perigee::tracing {

at::Tensor Values::tensor(size_t i) const {
  return values_[i].isTensor() ? values_[i].toTensor() : at::Tensor();
}

Op::Op(const c10::OperatorHandle& handle)
    : name(c10::toString(handle.operator_name())), handle(handle) {
  const auto has = [&](c10::DispatchKey key) { return handle.hasKernelForDispatchKey(key); };
  has_meta = has(c10::DispatchKey::Meta) || has(c10::DispatchKey::CompositeExplicitAutograd) ||
             has(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
  pointwise = handle.hasTag(at::Tag::pointwise);
  random = handle.hasTag(at::Tag::nondeterministic_seeded);
  shape = find_shape(name);
  canonical = random ? find_random(name) : find_canonical(name);
  refusal = find_refusal(name);
  if (refusal) return;
  if (handle.hasTag(at::Tag::data_dependent_output)) {
    refusal =
        "its result steers the model (item(), bool(tensor), equal()), and a graph has one path";
  } else if (handle.hasTag(at::Tag::dynamic_output_shape) && name != "aten::index.Tensor") {
    refusal = "its result's shape depends on values (nonzero, masks as indices, unique)";
  } else if (handle.schema().is_mutable()) {
    refusal = "it writes to an operand and has no pure form";
  }
}

const Op& op_of(const c10::OperatorHandle& handle) {
  // Captures hold a lock, so one thread at a time runs this.
  static auto& known = *new std::unordered_map<c10::OperatorHandle, Op>();
  const auto found = known.find(handle);
  if (found != known.end()) return found->second;
  return known.emplace(handle, Op(handle)).first->second;
}

}  // namespace perigee::tracing
