// The low precision and the loss scale, which the configs of amp_native and half share.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "methods/field_table.h"
#include "plan/precision.h"

namespace perigee::methods {

struct LossScaleConfig {
  Json loss_scale;  // null: not given
  double init_scale = plan::LossScale{}.init_scale;
  double growth_factor = plan::LossScale{}.growth_factor;
  double backoff_factor = plan::LossScale{}.backoff_factor;
  int64_t growth_interval = plan::LossScale{}.growth_interval;
  double min_scale = plan::LossScale{}.min_scale;
  int64_t hysteresis = plan::LossScale{}.hysteresis;
  std::optional<bool> skip_if_nonfinite;
};

// Returns the fields of LossScaleConfig.
const FieldTable<LossScaleConfig>& loss_scale_fields();

// Returns the names of float16 and bfloat16 in configs: "fp16", "bf16", "float16", ...
std::vector<std::string> low_dtype_names();

// Returns the type of one of low_dtype_names(), of "float32", "fp32" or "float64".
graph::DType dtype_named(std::string_view text);

// Returns the type that the config names as its field `dtype` or as its only item. Throws Error
// for both, several items, and another type than fp16 and bf16. `field`: the field `dtype`.
graph::DType low_dtype(const Config& config, const std::string& field, std::string_view method);

// Sets the loss scale of a precision that has its dtype, and whether non-finite steps are skipped:
// dynamic for float16, none for bfloat16, unless the config gives another. Throws Error for fields
// that contradict each other.
void set_loss_scale(plan::Precision& precision, const LossScaleConfig& given, const Config& config,
                    std::string_view method);

// Returns "; weights are kept in ..." or "".
std::string kept_weights_sentence(const plan::Precision& precision);

// Returns "; the loss is scaled by ...", "; non-finite steps are skipped", or "".
std::string loss_scale_sentence(const plan::Precision& precision);

}  // namespace perigee::methods
