#include "methods/low_precision.h"

#include "base/error.h"

namespace perigee::methods {

using graph::DType;
using Kind = plan::LossScale::Kind;

std::vector<Field> with_loss_scale(std::vector<Field> own) {
  const std::vector<Field> more = {
      {"loss_scale", "any",
       "\"dynamic\", \"none\", \"given\" (each step's is what the strategy's event loss_scale "
       "returns), or a number that stays; default dynamic for fp16, none for bf16"},
      {"init_scale", "number", "of a dynamic scale; default 65536"},
      {"growth_factor", "number", "after growth_interval steps that are finite; default 2"},
      {"backoff_factor", "number", "after a step that is not; default 0.5"},
      {"growth_interval", "integer", "steps; default 2000"},
      {"min_scale", "number", "a dynamic scale does not fall below; default 0"},
      {"hysteresis", "integer",
       "a dynamic scale falls from so many steps on that were not finite since it grew; default 1"},
      {"skip_if_nonfinite", "boolean",
       "a step with a gradient that is not finite, on any rank, changes nothing; default true "
       "where "
       "the loss is scaled, else false"}};
  own.insert(own.end(), more.begin(), more.end());
  return own;
}

DType dtype_named(std::string_view text, std::string_view method, std::string_view field) {
  if (text == "fp16" || text == "half") return DType::float16;
  if (text == "bf16") return DType::bfloat16;
  if (text == "fp32") return DType::float32;
  if (const auto dtype = graph::dtype_of(text)) {
    if (*dtype == DType::float16 || *dtype == DType::bfloat16 || *dtype == DType::float32) {
      return *dtype;
    }
  }
  const std::vector<std::string> known = {"fp16", "float16", "bf16", "bfloat16", "float32"};
  fail(method, "{} must be fp16 or bf16, but got \"{}\"{}", field, text,
       did_you_mean(std::string(text), known));
}

DType low_dtype(const Config& config, std::string_view method) {
  const bool field = config.fields.contains("dtype");
  if (config.items.size() + (field ? 1 : 0) > 1) {
    fail(method, "dtype must stand once, but got {} and {}", config.items.dump(),
         config.fields.value("dtype", Json()).dump());
  }
  if (!field && config.items.empty()) return DType::float16;
  const auto& given = field ? config.fields.at("dtype") : config.items.at(0);
  if (!given.is_string()) fail(method, "dtype must be fp16 or bf16, but got {}", given.dump());
  const auto dtype = dtype_named(given.get<std::string>(), method, "dtype");
  if (dtype == DType::float32) fail(method, "dtype must be fp16 or bf16, but got {}", given.dump());
  return dtype;
}

void set_loss_scale(plan::Precision& precision, const Config& config, std::string_view method) {
  const auto& fields = config.fields;
  auto& scale = precision.loss_scale;
  const bool half = precision.dtype == DType::float16;
  scale = {.kind = half ? Kind::dynamic : Kind::none};
  if (fields.contains("loss_scale")) {
    const auto& given = fields["loss_scale"];
    if (given.is_number()) {
      scale.kind = Kind::fixed;
      scale.init_scale = given.get<double>();
      if (!(scale.init_scale > 0)) {
        fail(method, "a loss_scale that stays must be above 0, but got {}", given.dump());
      }
    } else if (given == "dynamic" || given == "none" || given == "given") {
      scale.kind = given == "dynamic" ? Kind::dynamic : given == "none" ? Kind::none : Kind::given;
    } else {
      fail(method, "loss_scale must be \"dynamic\", \"none\", \"given\" or a number, but got {}",
           given.dump());
    }
  }
  for (const char* name : {"init_scale", "growth_factor", "backoff_factor", "growth_interval",
                           "min_scale", "hysteresis"}) {
    if (!fields.contains(name) || scale.kind == Kind::dynamic) continue;
    fail(method, "{} belongs to a dynamic loss scale, but {}", name,
         scale.kind == Kind::fixed       ? "loss_scale is a number that stays"
         : scale.kind == Kind::given     ? "loss_scale is given for each step"
         : fields.contains("loss_scale") ? "loss_scale is \"none\""
                                         : "bf16 has none (loss_scale = \"dynamic\" gives it one)");
  }
  scale.init_scale = fields.value("init_scale", scale.init_scale);
  scale.growth_factor = fields.value("growth_factor", scale.growth_factor);
  scale.backoff_factor = fields.value("backoff_factor", scale.backoff_factor);
  scale.growth_interval = fields.value("growth_interval", scale.growth_interval);
  scale.min_scale = fields.value("min_scale", scale.min_scale);
  scale.hysteresis = fields.value("hysteresis", scale.hysteresis);
  precision.skip_nonfinite = fields.value("skip_if_nonfinite", scale.kind != Kind::none);
  if (!precision.skip_nonfinite && scale.kind != Kind::none) {
    fail(method,
         "a step must be skipped where a scaled gradient is not finite, but skip_if_nonfinite is "
         "false");
  }
}

std::string loss_scale_sentence(const plan::Precision& precision) {
  const auto& scale = precision.loss_scale;
  switch (scale.kind) {
    case Kind::none:
      return precision.skip_nonfinite ? "; steps that are not finite are skipped" : "";
    case Kind::fixed:
      return fmt::format(
          "; the loss is scaled by {:.15g}, and steps that are not finite are skipped",
          scale.init_scale);
    case Kind::given:
      return "; the loss is scaled by what is given for each step, and steps that are not finite "
             "are skipped";
    case Kind::dynamic:
      break;
  }
  auto text = fmt::format(
      "; the loss is scaled by {:.15g} at first, times {:.15g} after a step that is not finite, "
      "which is skipped, times {:.15g} after {} in a row that are",
      scale.init_scale, scale.backoff_factor, scale.growth_factor, scale.growth_interval);
  if (scale.hysteresis > 1) {
    text += fmt::format("; it falls from step {} on that is not finite since it grew",
                        scale.hysteresis);
  }
  if (scale.min_scale > 0) text += fmt::format("; it is {:.15g} at least", scale.min_scale);
  return text;
}

}  // namespace perigee::methods
