// mixed_parallel and ds_3d_parallel: tensor, pipeline and data parallel together, under the names
// that ATorch gives the combination.
#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "methods/field_table.h"
#include "plan/pipeline.h"

namespace perigee::methods {

std::shared_ptr<const Method> tensor_parallel();
std::shared_ptr<const Method> pipeline_parallel();
std::shared_ptr<const Method> half();

namespace {

// Applies a method as if the strategy listed it.
void use(const Method& method, const Json& config, plan::Plan& plan, const PlanRequest& request) {
  method.apply(plan, check_config(method, config), request);
}

// Configs of the methods that are combined; null: not given.
struct PartsConfig {
  Json tensor, pipeline;
};

const FieldTable<PartsConfig>& part_fields() {
  static const FieldTable<PartsConfig> table({{.name = "tensor",
                                               .member = &PartsConfig::tensor,
                                               .type = FieldType::table,
                                               .doc = "fields of tensor_parallel"},
                                              {.name = "pipeline",
                                               .member = &PartsConfig::pipeline,
                                               .type = FieldType::table,
                                               .doc = "fields of pipeline_parallel"}});
  return table;
}

// Applies pipeline and tensor parallel where the mesh has their axes; a config without its axis is
// an error.
void apply_parts(plan::Plan& plan, const PartsConfig& config, const PlanRequest& request,
                 std::string_view name) {
  struct Part {
    const char* field;
    const char* axis;
    const Json& given;
    std::shared_ptr<const Method> method;
  };
  const Part parts[] = {{"pipeline", "pipe", config.pipeline, pipeline_parallel()},
                        {"tensor", "tensor", config.tensor, tensor_parallel()}};
  for (const auto& [field, axis, given, method] : parts) {
    if (plan.mesh.find(axis) >= 0) {
      use(*method, given, plan, request);
    } else if (!given.empty()) {
      fail(name, "{} needs an axis {} of parallel_mode, but the mesh has none", field, axis);
    }
  }
}

class MixedParallel : public MethodWith<PartsConfig> {
 public:
  std::string_view name() const override { return "mixed_parallel"; }
  std::string_view doc() const override {
    return "Tensor, pipeline and data parallel together, by the mesh: tensor_parallel where it "
           "has an axis tensor, pipeline_parallel where it has an axis pipe.";
  }

 protected:
  const FieldTable<PartsConfig>& table() const override { return part_fields(); }

  void edit(plan::Plan& plan, const PartsConfig& given, const Config&,
            const PlanRequest& request) const override {
    if (plan.mesh.find("tensor") < 0 && plan.mesh.find("pipe") < 0) {
      fail("mixed_parallel",
           "parallel_mode must have an axis tensor or pipe, but the mesh has neither: for data "
           "alone leave mixed_parallel out");
    }
    apply_parts(plan, given, request, name());
  }
};

// Applies precision and batch of a DeepSpeed config; other keys are errors.
class DeepSpeed {
 public:
  DeepSpeed(const Json& config, plan::Plan& plan, const PlanRequest& request)
      : config_(config), plan_(plan), request_(request) {}

  void apply() {
    allow(config_, "ds_config",
          {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
           "fp16", "bf16"});
    batch();
    precision();
  }

 private:
  static constexpr const char* kElsewhere =
      "of a DeepSpeed config, precision and batch are read; use other methods (zero1, checkpoint, "
      "grad_comm) and the job's optimizer for the rest";

  static void allow(const Json& table, const std::string& path,
                    const std::vector<std::string>& known) {
    if (!table.is_object()) {
      fail("ds_3d_parallel", "{} must be a table, but got {}", path, table.dump());
    }
    for (const auto& [key, value] : table.items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      fail("ds_3d_parallel", "{} has no key \"{}\" here{}: {}", path, key, did_you_mean(key, known),
           kElsewhere);
    }
  }

  int64_t count(const char* key) const { return count(key, config_[key]); }

  static int64_t count(const std::string& key, const Json& value) {
    if (!value.is_number_integer() || value.get<int64_t>() < 1) {
      fail("ds_3d_parallel", "ds_config.{} must be an integer of at least 1, but got {}", key,
           value.dump());
    }
    return value.get<int64_t>();
  }

  void batch() {
    if (config_.contains("train_batch_size") &&
        count("train_batch_size") != request_.global_batch) {
      fail("ds_3d_parallel",
           "ds_config.train_batch_size must be the job's batch.global {}, but is {}",
           request_.global_batch, count("train_batch_size"));
    }
    const auto wanted = microbatches();
    if (wanted == 0) return;
    if (plan_.microbatches != 0 && plan_.microbatches != wanted) {
      fail("ds_3d_parallel",
           "the strategy asks for {} microbatches, but ds_config makes {}: remove one of "
           "them",
           plan_.microbatches, wanted);
    }
    plan_.microbatches = wanted;
  }

  // Returns the microbatches of a step; 0: the config does not say.
  int64_t microbatches() const {
    const bool given = config_.contains("gradient_accumulation_steps");
    const auto steps = given ? count("gradient_accumulation_steps") : 0;
    if (!config_.contains("train_micro_batch_size_per_gpu")) return steps;
    const auto data = plan::batch_ranks(plan_);
    const auto rows = count("train_micro_batch_size_per_gpu") * data;
    const auto global = request_.global_batch;
    if (global % rows != 0 || (given && rows * steps != global)) {
      fail("ds_3d_parallel",
           "train_micro_batch_size_per_gpu x data ranks x gradient_accumulation_steps must be the "
           "batch of {}, but {} x {} does not divide it so",
           global, rows / data, data);
    }
    return global / rows;
  }

  bool enabled(const char* key) const {
    if (!config_.contains(key)) return false;
    const auto& table = config_[key];
    allow(table, std::string("ds_config.") + key,
          std::string_view(key) == "bf16"
              ? std::vector<std::string>{"enabled"}
              : std::vector<std::string>{"enabled", "auto_cast", "loss_scale",
                                         "initial_scale_power", "loss_scale_window", "hysteresis",
                                         "consecutive_hysteresis", "min_loss_scale"});
    const auto on = table.value("enabled", Json(false));
    if (!on.is_boolean()) {
      fail("ds_3d_parallel", "ds_config.{}.enabled must be true or false, but got {}", key,
           on.dump());
    }
    return on.get<bool>();
  }

  // Sets the fields of `half` for the loss scale of fp16, with DeepSpeed's defaults.
  static void set_loss_scale(Json& given, const Json& fp16) {
    const auto number = [&](const char* key, double otherwise) {
      const auto value = fp16.value(key, Json(otherwise));
      if (!value.is_number() || value.get<double>() < 0) {
        fail("ds_3d_parallel", "ds_config.fp16.{} must be a number of at least 0, but got {}", key,
             value.dump());
      }
      return value.get<double>();
    };
    const auto whole = [&](const std::string& key, int64_t otherwise) {
      return count("fp16." + key, fp16.value(key, Json(otherwise)));
    };
    if (const auto consecutive = fp16.value("consecutive_hysteresis", Json(false));
        consecutive != Json(false)) {
      fail("ds_3d_parallel",
           "ds_config.fp16.consecutive_hysteresis must be false, since hysteresis counts all "
           "non-finite steps after the scale last grew, but got {}",
           consecutive.dump());
    }
    // DeepSpeed's 0 is the dynamic scale.
    if (const auto fixed = number("loss_scale", 0); fixed > 0) {
      given["loss_scale"] = fixed;
      return;
    }
    given["init_scale"] = std::exp2(number("initial_scale_power", 16));
    given["growth_interval"] = whole("loss_scale_window", 1000);
    given["hysteresis"] = whole("hysteresis", 2);
    given["min_scale"] = number("min_loss_scale", 1);
  }

  void precision() {
    const bool fp16 = enabled("fp16"), bf16 = enabled("bf16");
    if (fp16 && bf16) {
      fail("ds_3d_parallel", "ds_config enables fp16 or bf16, but it enables both");
    }
    if (!fp16 && !bf16) return;
    Json given = {{"dtype", fp16 ? "fp16" : "bf16"}};
    if (fp16) set_loss_scale(given, config_["fp16"]);
    use(*half(), given, plan_, request_);
  }

  const Json& config_;
  plan::Plan& plan_;
  const PlanRequest& request_;
};

struct Ds3dConfig : PartsConfig {
  Json ds_config;
};

class Ds3dParallel : public MethodWith<Ds3dConfig> {
 public:
  std::string_view name() const override { return "ds_3d_parallel"; }
  std::string_view doc() const override {
    return "Tensor, pipeline and data parallel on a mesh of exactly these axes, with the "
           "precision and batch of a DeepSpeed config.";
  }

 protected:
  const FieldTable<Ds3dConfig>& table() const override {
    static const FieldTable<Ds3dConfig> table(
        part_fields(),
        std::vector<FieldRow<Ds3dConfig>>{
            {.name = "ds_config",
             .member = &Ds3dConfig::ds_config,
             .type = FieldType::table,
             .doc = "train_batch_size, train_micro_batch_size_per_gpu, "
                    "gradient_accumulation_steps, fp16 and bf16 as in DeepSpeed; fp16 and bf16 are "
                    "the method half"}});
    return table;
  }

  void edit(plan::Plan& plan, const Ds3dConfig& given, const Config&,
            const PlanRequest& request) const override {
    std::vector<std::string> axes, wanted = {"data", "pipe", "tensor"};
    for (const auto& axis : plan.mesh.axes) axes.push_back(axis.name);
    std::sort(axes.begin(), axes.end());
    if (axes != wanted) {
      std::string names;
      for (const auto& axis : plan.mesh.axes) names += (names.empty() ? "" : ", ") + axis.name;
      fail("ds_3d_parallel",
           "parallel_mode must have the axes tensor, pipe and data (of any sizes), but has {}: "
           "mixed_parallel takes others",
           names);
    }
    if (!given.ds_config.is_null()) DeepSpeed(given.ds_config, plan, request).apply();
    apply_parts(plan, given, request, name());
  }
};

}  // namespace

std::shared_ptr<const Method> mixed_parallel() { return std::make_shared<MixedParallel>(); }
std::shared_ptr<const Method> ds_3d_parallel() { return std::make_shared<Ds3dParallel>(); }

}  // namespace perigee::methods
