// mixed_parallel and ds_3d_parallel: tensor, pipeline and data parallel together, under the names
// that ATorch gives the combination.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "methods/method.h"
#include "plan/pipeline.h"

namespace perigee::methods {

std::shared_ptr<const Method> tensor_parallel();
std::shared_ptr<const Method> pipeline_parallel();
std::shared_ptr<const Method> half();

namespace {

// Applies a method as it would stand in the strategy.
void use(const Method& method, const Json& config, plan::Plan& plan, const Request& request) {
  method.apply(plan, check_config(method, config), request);
}

// Applies pipeline and tensor parallel where the mesh has their axes; a config without its axis is
// an error.
void apply_parts(plan::Plan& plan, const Config& config, const Request& request,
                 std::string_view name) {
  struct Part {
    const char* field;
    const char* axis;
    std::shared_ptr<const Method> method;
  };
  for (const auto& [field, axis, method] : {Part{"pipeline", "pipe", pipeline_parallel()},
                                            Part{"tensor", "tensor", tensor_parallel()}}) {
    const auto given = config.fields.value(field, Json::object());
    if (plan.mesh.find(axis) >= 0) {
      use(*method, given, plan, request);
    } else if (!given.empty()) {
      fail(name, "{} needs an axis {} of parallel_mode, but the mesh has none", field, axis);
    }
  }
}

std::vector<Field> part_fields() {
  return {{"tensor", "table", "fields of tensor_parallel; default none"},
          {"pipeline", "table", "fields of pipeline_parallel; default none"}};
}

class MixedParallel : public Method {
 public:
  std::string_view name() const override { return "mixed_parallel"; }
  std::string_view doc() const override {
    return "Tensor, pipeline and data parallel together, by the mesh: tensor_parallel where it "
           "has an axis tensor, pipeline_parallel where it has an axis pipe.";
  }
  const std::vector<Field>& fields() const override {
    static const auto fields = part_fields();
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    if (plan.mesh.find("tensor") < 0 && plan.mesh.find("pipe") < 0) {
      fail("mixed_parallel",
           "parallel_mode must have an axis tensor or pipe, but the mesh has neither: for data "
           "alone leave mixed_parallel out");
    }
    apply_parts(plan, config, request, name());
  }
};

// What a DeepSpeed config says of precision and batch; all else is refused.
class DeepSpeed {
 public:
  DeepSpeed(const Json& config, plan::Plan& plan, const Request& request)
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
      "of a DeepSpeed config, precision and batch are read; what other methods do (zero1, "
      "checkpoint, grad_comm) and the job's optimizer are said there";

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

  int64_t count(const char* key) const {
    const auto& value = config_[key];
    if (!value.is_number_integer() || value.get<int64_t>() < 1) {
      fail("ds_3d_parallel", "ds_config.{} must be an integer of at least 1, but got {}", key,
           value.dump());
    }
    return value.get<int64_t>();
  }

  void batch() {
    const auto data = plan::batch_ranks(plan_);
    if (config_.contains("train_batch_size") &&
        count("train_batch_size") != request_.global_batch) {
      fail("ds_3d_parallel",
           "ds_config.train_batch_size must be the job's batch.global {}, but is {}",
           request_.global_batch, count("train_batch_size"));
    }
    if (config_.contains("gradient_accumulation_steps")) {
      plan_.microbatches = count("gradient_accumulation_steps");
    }
    if (!config_.contains("train_micro_batch_size_per_gpu")) return;
    const auto rows = count("train_micro_batch_size_per_gpu") * data;
    const bool other = config_.contains("gradient_accumulation_steps") &&
                       rows * plan_.microbatches != request_.global_batch;
    if (request_.global_batch % rows != 0 || other) {
      fail("ds_3d_parallel",
           "train_micro_batch_size_per_gpu x data ranks x gradient_accumulation_steps must be the "
           "batch of {}, but {} x {} does not divide it so",
           request_.global_batch, rows / data, data);
    }
    plan_.microbatches = request_.global_batch / rows;
  }

  bool enabled(const char* key) const {
    if (!config_.contains(key)) return false;
    const auto& table = config_[key];
    allow(table, std::string("ds_config.") + key,
          std::string_view(key) == "bf16"
              ? std::vector<std::string>{"enabled"}
              : std::vector<std::string>{"enabled", "loss_scale", "initial_scale_power",
                                         "loss_scale_window"});
    const auto on = table.value("enabled", Json(false));
    if (!on.is_boolean()) {
      fail("ds_3d_parallel", "ds_config.{}.enabled must be true or false, but got {}", key,
           on.dump());
    }
    return on.get<bool>();
  }

  void precision() {
    const bool fp16 = enabled("fp16"), bf16 = enabled("bf16");
    if (fp16 && bf16) {
      fail("ds_3d_parallel", "ds_config enables fp16 or bf16, but it enables both");
    }
    if (!fp16 && !bf16) return;
    Json given = {{"dtype", fp16 ? "fp16" : "bf16"}};
    if (fp16) {
      const auto number = [&](const char* key, double otherwise) {
        const auto value = config_["fp16"].value(key, Json(otherwise));
        if (!value.is_number() || value.get<double>() < 0) {
          fail("ds_3d_parallel", "ds_config.fp16.{} must be a number of at least 0, but got {}",
               key, value.dump());
        }
        return value.get<double>();
      };
      // DeepSpeed's 0 is the dynamic scale.
      if (const auto fixed = number("loss_scale", 0); fixed > 0) {
        given["loss_scale"] = fixed;
      } else {
        given["init_scale"] = std::exp2(number("initial_scale_power", 16));
        given["growth_interval"] = static_cast<int64_t>(number("loss_scale_window", 1000));
      }
    }
    use(*half(), given, plan_, request_);
  }

  const Json& config_;
  plan::Plan& plan_;
  const Request& request_;
};

class Ds3dParallel : public Method {
 public:
  std::string_view name() const override { return "ds_3d_parallel"; }
  std::string_view doc() const override {
    return "Tensor, pipeline and data parallel on a mesh of exactly these axes, with the "
           "precision and batch of a DeepSpeed config.";
  }
  const std::vector<Field>& fields() const override {
    static const auto fields = [] {
      auto all = part_fields();
      all.push_back(
          {"ds_config", "table",
           "train_batch_size, train_micro_batch_size_per_gpu, "
           "gradient_accumulation_steps, fp16 and bf16 as in DeepSpeed; fp16 and bf16 are "
           "the method half"});
      return all;
    }();
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
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
    if (config.fields.contains("ds_config")) {
      DeepSpeed(config.fields["ds_config"], plan, request).apply();
    }
    apply_parts(plan, config, request, name());
  }
};

}  // namespace

std::shared_ptr<const Method> mixed_parallel() { return std::make_shared<MixedParallel>(); }
std::shared_ptr<const Method> ds_3d_parallel() { return std::make_shared<Ds3dParallel>(); }

}  // namespace perigee::methods
