#include "methods/order.h"

#include <algorithm>
#include <string_view>

#include "base/fail.h"
#include "methods/placed.h"

namespace perigee::methods {
namespace {

// "": all methods that are not listed.
constexpr std::string_view kOrder[] = {
    "parallel_mode",          // the others read the mesh
    "lora",                   // the others see its adapters in the graph
    "expert_parallel",        // the batch may be sharded over its axis
    "gradient_accumulation",  //
    "pipeline_parallel",      // the others see the stages
    "mixed_parallel",         // it contains pipeline_parallel
    "ds_3d_parallel",         // it contains it too, and may set the microbatches
    "grad_comm",              // the size of a bucket is also that of a unit
    "amp_native",             // it and half set the dtype that module_replace looks at
    "half",                   //
    "module_replace",         // the others may name the ops that it makes
    "",                       //
    "chunked_loss",           // it refuses weight gradients that overlap and pipelines delay
    "partition_constraints",  // it reads the sharding that follows from the others' pins
    "zero1",                  // these shard parameters that no other method has sharded
    "zero2",                  //
    "fsdp",                   //
    "offload",                // it moves the parameters of units
    "auto_sharding",          // it decides what the others leave open
};

struct Conflict {
  std::string_view a, b;
  std::string_view reason;
};

constexpr Conflict kConflicts[] = {
    {"mixed_parallel", "tensor_parallel",
     "it is a part of the other: give mixed_parallel its table"},
    {"mixed_parallel", "pipeline_parallel",
     "it is a part of the other: give mixed_parallel its table"},
    {"mixed_parallel", "ds_3d_parallel", "both are tensor, pipeline and data parallel"},
    {"ds_3d_parallel", "tensor_parallel",
     "it is a part of the other: give ds_3d_parallel its table"},
    {"ds_3d_parallel", "pipeline_parallel",
     "it is a part of the other: give ds_3d_parallel its table"},
    {"ds_3d_parallel", "half", "its ds_config sets the precision"},
    {"ds_3d_parallel", "amp_native", "its ds_config sets the precision"},
    {"zero1", "zero2", "zero2 stores in parts all that zero1 does, and gradients too"},
    {"zero1", "fsdp", "fsdp stores in parts all that zero1 does, and gradients and parameters too"},
    {"zero2", "fsdp", "fsdp stores in parts all that zero2 does, and parameters too"},
};

[[noreturn]] void refuse_conflict(const Conflict& conflict) {
  fail("strategy", "{} and {} exclude each other, but the strategy has both: {}", conflict.a,
       conflict.b, conflict.reason);
}

// Methods that plan each stage on its own submesh.
constexpr std::string_view kSeeSubmeshes[] = {"auto_sharding"};

size_t position(std::string_view name) {
  const auto find = [](std::string_view wanted) {
    return static_cast<size_t>(std::find(std::begin(kOrder), std::end(kOrder), wanted) -
                               std::begin(kOrder));
  };
  const auto at = find(name);
  return at < std::size(kOrder) ? at : find("");
}

}  // namespace

bool sees_submeshes(const Method& method) {
  return std::find(std::begin(kSeeSubmeshes), std::end(kSeeSubmeshes), method.name()) !=
         std::end(kSeeSubmeshes);
}

void check_conflicts(std::string_view method, std::span<const std::string> others) {
  const auto has = [&](std::string_view name) {
    return std::find(others.begin(), others.end(), name) != others.end();
  };
  for (const auto& conflict : kConflicts) {
    if (method == conflict.a && has(conflict.b)) refuse_conflict(conflict);
    if (method == conflict.b && has(conflict.a)) refuse_conflict(conflict);
  }
}

std::vector<MethodUse> in_order(std::vector<MethodUse> uses) {
  const auto find = [&](std::string_view name) {
    return std::find_if(uses.begin(), uses.end(),
                        [&](const MethodUse& use) { return use.method->name() == name; });
  };
  for (const auto& conflict : kConflicts) {
    const auto a = find(conflict.a), b = find(conflict.b);
    if (a == uses.end() || b == uses.end()) continue;
    at_place(std::max(a, b)->config, [&] { refuse_conflict(conflict); });
  }
  std::stable_sort(uses.begin(), uses.end(), [](const MethodUse& a, const MethodUse& b) {
    return position(a.method->name()) < position(b.method->name());
  });
  return uses;
}

}  // namespace perigee::methods
