// fsdp (ZeRO level 3): parameters, gradients and optimizer state stored in parts; a unit's
// parameters are all-gathered before their use.
#include <algorithm>

#include "base/fail.h"
#include "methods/data/unit_options.h"

namespace perigee::methods {
namespace {

// PyTorch's sharding strategies.
enum class ShardingStrategy : unsigned char {
  full_shard,
  shard_grad_op,
  hybrid_shard,
  hybrid_shard_zero2,
};
enum class BackwardPrefetch : unsigned char { pre, post, none };

struct FsdpConfig : UnitConfig {
  std::optional<bool> reshard_after_forward;
  std::optional<ShardingStrategy> sharding_strategy;
  bool forward_prefetch = true;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  bool limit_all_gathers = true;
  std::optional<double> prefetch_mb;
  bool cpu_offload = false;
};

class Fsdp : public MethodWith<FsdpConfig> {
 public:
  std::string_view name() const override { return "fsdp"; }
  std::string_view doc() const override {
    return "Fully sharded data parallel (ZeRO level 3): each rank stores its part of parameters, "
           "gradients and optimizer state; a unit's parameters are all-gathered before their use.";
  }

 protected:
  const FieldTable<FsdpConfig>& table() const override {
    using C = FsdpConfig;
    static const FieldTable<C> table(
        unit_fields(),
        std::vector<FieldRow<C>>{
            {.name = "reshard_after_forward",
             .member = &C::reshard_after_forward,
             .otherwise = "true with FULL_SHARD and HYBRID_SHARD",
             .doc = "re-gather a unit for the backward pass instead of keeping it"},
            {.name = "sharding_strategy",
             .member = &C::sharding_strategy,
             .otherwise = "`FULL_SHARD`",
             .allowed = {"FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"},
             .doc =
                 "PyTorch's names: SHARD_GRAD_OP and _HYBRID_SHARD_ZERO2 do not reshard after the "
                 "forward pass; the hybrid ones shard over an axis zero and replicate over data"},
            {.name = "forward_prefetch",
             .member = &C::forward_prefetch,
             .doc = "prefetch the next unit while one computes"},
            {.name = "backward_prefetch",
             .member = &C::backward_prefetch,
             .allowed = {"BACKWARD_PRE", "BACKWARD_POST", "none"},
             .doc =
                 "BACKWARD_PRE: prefetch in the backward pass, too; the others: gather a unit when "
                 "it is needed"},
            {.name = "limit_all_gathers",
             .member = &C::limit_all_gathers,
             .doc = "prefetch one unit; false: two"},
            {.name = "prefetch_mb",
             .member = &C::prefetch_mb,
             .otherwise = "any size",
             .above = 0,
             .below = 1e9,
             .doc = "upper bound on the size of prefetched units in MiB"},
            {.name = "wrap_trainable_outmost",
             .member = &C::trainable_outmost,
             .doc = "ATorch's name of trainable_outmost"},
            {.name = "fsdp_wrap_params_outmost",
             .member = &C::trainable_outmost,
             .doc = "ATorch's older name of it"},
            {.name = "sync_module_states", .no_effect = "ranks begin with the same weights"},
            {.name = "use_orig_params", .no_effect = "parameters keep their names and shapes"},
            {.name = "cpu_offload",
             .member = &C::cpu_offload,
             .doc = "store each rank's parts of parameters and optimizer state in host memory"}});
    return table;
  }

  void edit(plan::Plan& plan, const FsdpConfig& given, const Config& config,
            const PlanRequest& request) const override {
    note_no_effects(plan, config, *this);
    const bool reshard = reads_reshard(plan, given);
    set_prefetch(plan.communication, given);
    const bool offloads = given.cpu_offload;
    plan.offload.optimizer = plan.offload.optimizer || offloads;
    const bool cut = add_units(plan, given, request, *this, 3);
    if (offloads) {
      plan.offload.parameters = cut;
      plan.decisions.push_back(
          {"fsdp", cut ? "the ranks' parts of parameters and optimizer state are in host memory"
                       : "optimizer state is in host memory, parameters are not"});
    }
    if (!cut) return;
    for (auto& unit : plan.units) unit.reshard_after_forward = reshard;
    plan.decisions.push_back(
        {"fsdp",
         fmt::format("parameters, gradients and optimizer state are kept in parts: {}; a unit is "
                     "gathered for its forward pass and {}, {}",
                     describe_units(plan, *request.graph),
                     reshard ? "re-gathered for its backward pass" : "kept for its backward pass",
                     prefetch_sentence(plan.communication))});
  }

 private:
  static bool reads_reshard(const plan::Plan& plan, const FsdpConfig& given) {
    using enum ShardingStrategy;
    const auto strategy = given.sharding_strategy.value_or(full_shard);
    const bool hybrid = strategy == hybrid_shard || strategy == hybrid_shard_zero2;
    if (hybrid && plan.mesh.find("zero") < 0) {
      fail("fsdp",
           "sharding_strategy = \"{}\" shards over an axis zero and replicates over data, but the "
           "mesh has no axis zero: add {{\"zero\", ranks of a group}} to parallel_mode",
           strategy == hybrid_shard ? "HYBRID_SHARD" : "_HYBRID_SHARD_ZERO2");
    }
    const bool reshard = strategy == full_shard || strategy == hybrid_shard;
    const bool asked = given.reshard_after_forward.value_or(reshard);
    if (given.sharding_strategy && asked != reshard) {
      fail("fsdp",
           "sharding_strategy implies reshard_after_forward = {}, but got {}: leave one of them "
           "out",
           reshard, asked);
    }
    return asked;
  }

  static void set_prefetch(plan::Communication& communication, const FsdpConfig& given) {
    const int64_t depth = given.limit_all_gathers ? 1 : 2;
    communication.prefetch_forward = given.forward_prefetch ? depth : 0;
    communication.prefetch_backward = given.backward_prefetch == BackwardPrefetch::pre ? depth : 0;
    if (!given.prefetch_mb) return;
    communication.prefetch_bytes = static_cast<int64_t>(*given.prefetch_mb * (1 << 20));
  }

  static std::string prefetch_sentence(const plan::Communication& communication) {
    const auto forward = communication.prefetch_forward, backward = communication.prefetch_backward;
    if (forward == 0 && backward == 0) return "without prefetch";
    if (forward == backward) return fmt::format("prefetched {} ahead", forward);
    return fmt::format("prefetched {} ahead in the forward and {} in the backward pass", forward,
                       backward);
  }
};

}  // namespace

std::shared_ptr<const Method> fsdp() { return std::make_shared<Fsdp>(); }

}  // namespace perigee::methods
