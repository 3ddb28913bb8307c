// What the configs of amp_native and half have in common: the low precision and the loss scale.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "methods/method.h"

namespace perigee::methods {

// Returns `own` and the fields of the loss scale.
std::vector<Field> with_loss_scale(std::vector<Field> own);

// Returns the type that the config names, as `dtype` or as its only item: float16 where it names
// none. Throws Error for another than fp16 and bf16 under their names.
graph::DType low_dtype(const Config& config, std::string_view method);

// Returns the type that a field names ("fp16", "bfloat16", "float32"). Throws Error for others.
graph::DType dtype_named(std::string_view text, std::string_view method, std::string_view field);

// Sets the loss scale, and whether steps may be skipped, of a precision that has its dtype: dynamic
// for float16, none for bfloat16, unless the config says otherwise. Throws Error for fields that
// contradict each other.
void set_loss_scale(plan::Precision& precision, const Config& config, std::string_view method);

// Returns "; the loss is scaled by ...", or what else there is to say of skipped steps.
std::string loss_scale_sentence(const plan::Precision& precision);

}  // namespace perigee::methods
