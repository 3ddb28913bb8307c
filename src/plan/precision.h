// What a step rounds: the ops that compute in a low precision, what parameters are read as, and how
// the loss is scaled. Methods write it, compile/ carries it out (compile/autocast.cc,
// compile/loss_scale.h).
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
    fixed,    // init_scale for good
    dynamic,  // times backoff_factor after a step with a gradient that is not finite, times
              // growth_factor after growth_interval steps in a row without
    given,    // what the host writes before a step, init_scale at first
  };
  Kind kind = Kind::none;
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  double min_scale = 0;  // dynamic: it does not fall below
  // dynamic: it falls from so many steps on that were not finite since it last grew (or began),
  // whatever the steps between them were, and after every further one.
  int64_t hysteresis = 1;
  bool operator==(const LossScale&) const = default;
};

struct Precision {
  // What parameters are to the ops that read them.
  enum class Parameters : uint8_t {
    as_captured,
    masters,  // ops read them rounded to `dtype` (norms as they are), gradients come out in
              // `gradients`; what is stored and stepped stays float32
    low,      // they are stored in `dtype`, the optimizer's state in float32; new values are
              // rounded up or down at random, right on average
  };

  // float16 or bfloat16: the low precision. Nothing: every op computes as captured.
  std::optional<graph::DType> dtype;
  Parameters parameters = Parameters::as_captured;
  // Of gradient buffers where parameters are not as captured: `dtype` or float32. Nothing: `dtype`
  // with one microbatch, float32 with several, which add up there. Those of units are float32.
  std::optional<graph::DType> gradients;

  // Ops ("aten::mm") that depart from the built-in lists (below): they compute in the low
  // precision, in float32, or in the widest of their operands. An op is in one of them.
  std::vector<std::string> allow, deny, promote;
  // What is outside of these scopes computes as captured. Empty: nothing is outside.
  std::vector<std::string> scopes;

  // A step whose gradients are not all finite, on any rank, changes nothing.
  bool skip_nonfinite = false;
  LossScale loss_scale;

  // Whether a step may be skipped.
  bool guards() const { return skip_nonfinite || loss_scale.kind != LossScale::Kind::none; }
  bool operator==(const Precision&) const = default;
};

enum class Rounding : uint8_t {
  low,     // floating operands are cast to the low precision
  full,    // to float32
  widest,  // to the widest among them
  follow,  // the same, where a scalar (no dims) counts only among scalars: LibTorch's promotion
};

// Returns how an op rounds where no list of the plan names it: LibTorch's autocast lists of CUDA
// (ATen/autocast_mode.h), whatever the device, in terms of the ops that a graph has (attention for
// scaled_dot_product_attention, _softmax for softmax, ...). With parameters that are not as
// captured everything follows its operands but norms and losses, which compute in float32.
Rounding built_in_rounding(std::string_view op, Precision::Parameters parameters);

// Returns whether the op is a norm whose result, where parameters are not as captured, is read in
// the low precision though it computes in float32.
bool is_norm(std::string_view op);

// Throws Error when the dtype is not a low precision, or is missing where something needs it, a
// factor or interval is out of range, or a list names an op or scope twice or one that the graph
// lacks.
void verify(const Precision& precision, const graph::Graph& graph);

// Returns "none", "fixed", "dynamic" or "given"; "as_captured", "masters" or "low".
std::string_view name_of(LossScale::Kind kind);
std::string_view name_of(Precision::Parameters parameters);

}  // namespace perigee::plan
