#include "methods/precision/low_precision.h"

#include <algorithm>

#include "base/fail.h"

namespace perigee::methods {

using graph::DType;
using Kind = plan::LossScale::Kind;

const FieldTable<LossScaleConfig>& loss_scale_fields() {
  using C = LossScaleConfig;
  static const FieldTable<C> table(
      {{.name = "loss_scale",
        .member = &C::loss_scale,
        .otherwise = "`dynamic` for fp16, `none` for bf16",
        .doc = "`dynamic`, `none`, `given` (the strategy's event loss_scale returns the scale of "
               "each step), or a number: a constant scale"},
       {.name = "init_scale",
        .member = &C::init_scale,
        .above = 0,
        .doc = "first value of a dynamic scale"},
       {.name = "growth_factor",
        .member = &C::growth_factor,
        .above = 1,
        .doc = "a dynamic scale is multiplied by it after growth_interval finite steps in a row"},
       {.name = "backoff_factor",
        .member = &C::backoff_factor,
        .above = 0,
        .below = 1,
        .doc = "a dynamic scale is multiplied by it after a non-finite step"},
       {.name = "growth_interval",
        .member = &C::growth_interval,
        .at_least = 1,
        .doc = "finite steps before a dynamic scale grows"},
       {.name = "min_scale",
        .member = &C::min_scale,
        .at_least = 0,
        .doc = "lower bound of a dynamic scale"},
       {.name = "hysteresis",
        .member = &C::hysteresis,
        .at_least = 1,
        .doc = "non-finite steps since the last growth before a dynamic scale falls"},
       {.name = "skip_if_nonfinite",
        .member = &C::skip_if_nonfinite,
        .otherwise = "true where the loss is scaled, else false",
        .doc = "skip the optimizer step where a gradient on any rank is not finite"}});
  return table;
}

std::vector<std::string> low_dtype_names() {
  return {"fp16", "bf16", "float16", "half", "bfloat16"};
}

DType dtype_named(std::string_view text) {
  if (text == "fp16" || text == "half") return DType::float16;
  if (text == "bf16") return DType::bfloat16;
  if (text == "fp32") return DType::float32;
  return graph::dtype_of(text).value();
}

DType low_dtype(const Config& config, const std::string& field, std::string_view method) {
  const bool given = config.has("dtype");
  if (config.items.size() + (given ? 1 : 0) > 1) {
    fail(method, "dtype must be given once, but got {} and {}", config.items.dump(),
         given ? config.fields.at("dtype").dump() : "no field");
  }
  if (config.items.empty()) return dtype_named(field);
  check_value({.name = "dtype", .type = FieldType::string, .allowed = low_dtype_names()},
              config.items.at(0), method);
  return dtype_named(config.items.at(0).get<std::string>());
}

namespace {

plan::LossScale read_loss_scale(const Json& given, bool half, std::string_view method) {
  if (given.is_null()) return {.kind = half ? Kind::dynamic : Kind::none};
  if (given.is_number()) {
    const plan::LossScale scale{.kind = Kind::fixed, .init_scale = given.get<double>()};
    if (scale.init_scale > 0) return scale;
    fail(method, "a constant loss_scale must be above 0, but got {}", given.dump());
  }
  if (given == "dynamic") return {.kind = Kind::dynamic};
  if (given == "none") return {.kind = Kind::none};
  if (given == "given") return {.kind = Kind::given};
  fail(method, "loss_scale must be \"dynamic\", \"none\", \"given\" or a number, but got {}",
       given.dump());
}

}  // namespace

void set_loss_scale(plan::Precision& precision, const LossScaleConfig& given, const Config& config,
                    std::string_view method) {
  auto& scale = precision.loss_scale;
  scale = read_loss_scale(given.loss_scale, precision.dtype == DType::float16, method);
  for (const char* name : {"init_scale", "growth_factor", "backoff_factor", "growth_interval",
                           "min_scale", "hysteresis"}) {
    if (!config.has(name) || scale.kind == Kind::dynamic) continue;
    fail(method, "{} requires a dynamic loss scale, but {}", name,
         scale.kind == Kind::fixed     ? "loss_scale is a constant"
         : scale.kind == Kind::given   ? "loss_scale is given for each step"
         : !given.loss_scale.is_null() ? "loss_scale is \"none\""
                                       : "bf16 has none (loss_scale = \"dynamic\" gives it one)");
  }
  if (scale.kind == Kind::dynamic) {
    scale.init_scale = given.init_scale;
    scale.growth_factor = given.growth_factor;
    scale.backoff_factor = given.backoff_factor;
    scale.growth_interval = given.growth_interval;
    scale.min_scale = given.min_scale;
    scale.hysteresis = given.hysteresis;
  }
  precision.skip_nonfinite = given.skip_if_nonfinite.value_or(scale.kind != Kind::none);
  if (!precision.skip_nonfinite && scale.kind != Kind::none) {
    fail(method,
         "a scaled loss requires that non-finite steps are skipped, but skip_if_nonfinite is "
         "false");
  }
}

std::string kept_weights_sentence(const plan::Precision& precision) {
  if (!precision.keep_weights) return "";
  return fmt::format("; weights are kept in {}, too, from step to step",
                     graph::name_of(*precision.dtype));
}

std::string loss_scale_sentence(const plan::Precision& precision) {
  const auto& scale = precision.loss_scale;
  switch (scale.kind) {
    case Kind::none:
      return precision.skip_nonfinite ? "; non-finite steps are skipped" : "";
    case Kind::fixed:
      return fmt::format("; the loss is scaled by {:.15g}, and non-finite steps are skipped",
                         scale.init_scale);
    case Kind::given:
      return "; the loss is scaled by the value given for each step, and non-finite steps are "
             "skipped";
    case Kind::dynamic:
      break;
  }
  auto text = fmt::format(
      "; the loss is scaled by {:.15g} at first, times {:.15g} after a non-finite step, which is "
      "skipped, times {:.15g} after {} finite steps in a row",
      scale.init_scale, scale.backoff_factor, scale.growth_factor, scale.growth_interval);
  if (scale.hysteresis > 1) {
    text += fmt::format("; it falls from the {}th non-finite step since it grew on",
                        scale.hysteresis);
  }
  if (scale.min_scale > 0) text += fmt::format("; it is at least {:.15g}", scale.min_scale);
  return text;
}

}  // namespace perigee::methods
