// Mixed precision: the ops that compute in a low precision, the type in which ops read parameters,
// and the scale of the loss. Methods write these settings, compile/ applies them
// (compile/graph/autocast.cc, compile/gradients/loss_scale.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/dtype.h"
#include "graph/graph.h"

namespace perigee::plan {

// The loss is multiplied before the backward pass and the gradients are divided after it, so that
// small ones do not vanish in float16. Names and meaning are torch.amp.GradScaler's; min_scale and
// hysteresis are those of Megatron's DynamicGradScaler.
struct LossScale {
  enum class Kind : uint8_t {
    none,
    fixed,    // init_scale in every step
    dynamic,  // multiplied by backoff_factor after a step with a non-finite gradient, and by
              // growth_factor after growth_interval consecutive finite steps
    given,    // the value that the host writes before a step; initially init_scale
  };
  Kind kind = Kind::none;
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  double min_scale = 0;  // dynamic: lower limit of the scale
  // dynamic: the scale is reduced at each non-finite step once so many of them, consecutive or not,
  // have occurred since it last grew (or the run began).
  int64_t hysteresis = 1;
  bool operator==(const LossScale&) const = default;
};

struct Precision {
  // The type in which parameters are stored and read.
  enum class Parameters : uint8_t {
    as_captured,
    masters,  // stored and updated in float32; ops read them cast to `dtype` (norms uncast), and
              // their gradients have the type `gradients`
    low,      // stored in `dtype` with optimizer state in float32; updates use unbiased
              // stochastic rounding
  };

  // float16 or bfloat16: the low precision. Nothing: every op computes as captured.
  std::optional<graph::DType> dtype;
  Parameters parameters = Parameters::as_captured;
  // Type of gradient buffers where parameters are not as_captured: `dtype` or float32. Nothing:
  // `dtype` with one microbatch, float32 with several, whose gradients are accumulated. Buffers of
  // units are float32.
  std::optional<graph::DType> gradients;

  // Ops ("aten::mm") that deviate from the built-in lists (below): they compute in the low
  // precision (allow), in float32 (deny), or in the widest type of their operands (promote). An op
  // is in at most one list.
  std::vector<std::string> allow, deny, promote;
  // Ops outside these scopes compute as captured. Empty: all ops are inside.
  std::vector<std::string> scopes;

  // Casts of float32 weights to `dtype` outlive a step: the optimizer writes them beside the weights,
  // and no microbatch casts.
  bool keep_weights = false;
  // Skip the update of a step with a non-finite gradient on any rank.
  bool skip_nonfinite = false;
  LossScale loss_scale;

  // Whether a step may be skipped.
  bool guards() const { return skip_nonfinite || loss_scale.kind != LossScale::Kind::none; }
  bool operator==(const Precision&) const = default;
};

enum class Rounding : uint8_t {
  low,     // floating operands are cast to the low precision
  full,    // floating operands are cast to float32
  widest,  // floating operands are cast to the widest of their types
  follow,  // like widest, but scalars (no dims) count only among scalars: LibTorch's promotion
};

// Returns the rounding of an op that no list of the plan names: LibTorch's autocast lists for CUDA
// (ATen/autocast_mode.h) on every device, in terms of the ops that a graph has (attention for
// scaled_dot_product_attention, _softmax for softmax, ...). With parameters that are not
// as_captured, all ops follow their operands except norms and losses, which compute in float32.
Rounding built_in_rounding(std::string_view op, Precision::Parameters parameters);

// Returns whether the op is a norm that computes in float32 and whose result is cast to the low
// precision where parameters are not as_captured.
bool is_norm(std::string_view op);

// Throws Error when the dtype is not a low precision or is missing where another setting requires
// it, a factor or interval is out of range, or a list names an op or scope twice or one that the
// graph lacks.
void verify(const Precision& precision, const graph::Graph& graph);

// Returns "none", "fixed", "dynamic" or "given"; "as_captured", "masters" or "low".
std::string_view name_of(LossScale::Kind kind);
std::string_view name_of(Precision::Parameters parameters);

}  // namespace perigee::plan
