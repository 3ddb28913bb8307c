// fsdp (ZeRO level 3): parameters, gradients and optimizer state kept in parts; a unit's parameters
// are gathered where they are used.
#include <algorithm>

#include "base/error.h"
#include "methods/method.h"
#include "methods/unit_options.h"

namespace perigee::methods {
namespace {

// PyTorch's sharding strategies.
const std::vector<std::string> kStrategies = {"FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD",
                                              "_HYBRID_SHARD_ZERO2"};
const std::vector<std::string> kBackward = {"BACKWARD_PRE", "BACKWARD_POST", "none"};

class Fsdp : public Method {
 public:
  Fsdp() {
    fields_ = unit_fields();
    const std::vector<Field> more = {
        {"reshard_after_forward", "boolean",
         "gather a unit again for the backward pass instead of keeping it; default true"},
        {"sharding_strategy", "string",
         "FULL_SHARD (default), SHARD_GRAD_OP (not resharded after forward), HYBRID_SHARD or "
         "_HYBRID_SHARD_ZERO2 (the same on an axis zero beside data)"},
        {"forward_prefetch", "boolean", "gather the next unit while one is at work; default true"},
        {"backward_prefetch", "string",
         "BACKWARD_PRE (default): the same in the backward pass; BACKWARD_POST, none: when it is "
         "needed"},
        {"limit_all_gathers", "boolean", "false: gather two units ahead instead of one"},
        {"prefetch_mb", "number",
         "what is gathered ahead takes at most so many MiB; default any size"},
        {"wrap_trainable_outmost", "boolean",
         "no effect: parameters that require no gradient have units of their own"},
        {"fsdp_wrap_params_outmost", "boolean", "no effect, as wrap_trainable_outmost"},
        {"sync_module_states", "boolean", "no effect: ranks begin with the same weights"},
        {"use_orig_params", "boolean", "no effect: parameters keep their names and shapes"},
        {"cpu_offload", "boolean",
         "each rank's parts of parameters and optimizer state lie in the host's memory; default "
         "false"},
    };
    fields_.insert(fields_.end(), more.begin(), more.end());
  }
  std::string_view name() const override { return "fsdp"; }
  std::string_view doc() const override {
    return "Fully sharded data parallel (ZeRO level 3): each rank keeps its part of parameters, "
           "gradients and optimizer state; a unit's parameters are gathered where they are used.";
  }
  const std::vector<Field>& fields() const override { return fields_; }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    note_no_effect(plan, config, *this, "wrap_trainable_outmost",
                   "parameters that require no gradient have units of their own");
    note_no_effect(plan, config, *this, "fsdp_wrap_params_outmost",
                   "parameters that require no gradient have units of their own");
    note_no_effect(plan, config, *this, "sync_module_states", "ranks begin with the same weights");
    note_no_effect(plan, config, *this, "use_orig_params",
                   "parameters keep their names and shapes");
    const bool reshard = reads_reshard(plan, config);
    set_prefetch(plan.communication, config);
    const bool offloads =
        config.fields.contains("cpu_offload") && config.fields["cpu_offload"].get<bool>();
    plan.offload.optimizer = plan.offload.optimizer || offloads;
    const bool cut = add_units(plan, config, request, *this, 3);
    if (offloads) {
      plan.offload.parameters = cut;
      plan.decisions.push_back(
          {"fsdp", cut ? "the ranks' parts of parameters and optimizer state lie in the host's "
                         "memory"
                       : "optimizer state lies in the host's memory, parameters do not"});
    }
    if (!cut) return;
    for (auto& unit : plan.units) unit.reshard_after_forward = reshard;
    plan.decisions.push_back(
        {"fsdp",
         fmt::format("parameters, gradients and optimizer state are kept in parts: {}; a unit is "
                     "gathered for its forward pass and {}, {}",
                     describe_units(plan, *request.graph),
                     reshard ? "again for its backward pass" : "kept for its backward pass",
                     prefetch_sentence(plan.communication))});
  }

 private:
  static bool reads_reshard(const plan::Plan& plan, const Config& config) {
    bool reshard = true;
    if (config.fields.contains("sharding_strategy")) {
      const auto strategy = config.fields["sharding_strategy"].get<std::string>();
      if (std::find(kStrategies.begin(), kStrategies.end(), strategy) == kStrategies.end()) {
        fail("fsdp",
             "sharding_strategy is FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD or "
             "_HYBRID_SHARD_ZERO2, but got \"{}\"{}",
             strategy, did_you_mean(strategy, kStrategies));
      }
      if (strategy.find("HYBRID") != std::string::npos && plan.mesh.find("zero") < 0) {
        fail("fsdp",
             "{} shards over an axis zero and repeats over data, but the mesh has no axis zero: "
             "add {{\"zero\", ranks of a group}} to parallel_mode",
             strategy);
      }
      reshard = strategy == "FULL_SHARD" || strategy == "HYBRID_SHARD";
    }
    if (!config.fields.contains("reshard_after_forward")) return reshard;
    const bool asked = config.fields["reshard_after_forward"].get<bool>();
    if (config.fields.contains("sharding_strategy") && asked != reshard) {
      fail("fsdp", "{} says reshard_after_forward = {}, but got {}: leave one of them out",
           config.fields["sharding_strategy"].dump(), reshard, asked);
    }
    return asked;
  }

  static void set_prefetch(plan::Communication& communication, const Config& config) {
    const auto& fields = config.fields;
    const bool unlimited =
        fields.contains("limit_all_gathers") && fields["limit_all_gathers"] == false;
    const int64_t depth = unlimited ? 2 : 1;
    const bool forward = !fields.contains("forward_prefetch") || fields["forward_prefetch"] == true;
    std::string backward = "BACKWARD_PRE";
    if (fields.contains("backward_prefetch")) backward = fields["backward_prefetch"];
    if (std::find(kBackward.begin(), kBackward.end(), backward) == kBackward.end()) {
      fail("fsdp", "backward_prefetch is BACKWARD_PRE, BACKWARD_POST or none, but got \"{}\"{}",
           backward, did_you_mean(backward, kBackward));
    }
    communication.prefetch_forward = forward ? depth : 0;
    communication.prefetch_backward = backward == "BACKWARD_PRE" ? depth : 0;
    if (!fields.contains("prefetch_mb")) return;
    const auto size = fields["prefetch_mb"].get<double>();
    if (!(size > 0 && size < 1e9)) {
      fail("fsdp", "prefetch_mb must be above 0 and below 1e9, but got {}", size);
    }
    communication.prefetch_bytes = static_cast<int64_t>(size * (1 << 20));
  }

  static std::string prefetch_sentence(const plan::Communication& communication) {
    const auto forward = communication.prefetch_forward, backward = communication.prefetch_backward;
    if (forward == 0 && backward == 0) return "when it is needed";
    if (forward == backward) return fmt::format("{} ahead", forward);
    return fmt::format("{} ahead in the forward and {} in the backward pass", forward, backward);
  }

  std::vector<Field> fields_;
};

}  // namespace

std::shared_ptr<const Method> fsdp() { return std::make_shared<Fsdp>(); }

}  // namespace perigee::methods
