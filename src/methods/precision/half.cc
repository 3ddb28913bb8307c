// half: the model in a low precision, with or without float32 masters of its parameters.
#include "base/fail.h"
#include "methods/precision/low_precision.h"

namespace perigee::methods {
namespace {

using graph::DType;
using Parameters = plan::Precision::Parameters;

struct HalfConfig : LossScaleConfig {
  std::string dtype = "fp16";
  bool masters = true, keep_weights = false;
  std::optional<std::string> gradients;
};

class Half : public MethodWith<HalfConfig> {
 public:
  std::string_view name() const override { return "half"; }
  std::string_view doc() const override {
    return "The model in fp16 or bf16: ops other than norms and losses read parameters and "
           "floating-point inputs in this type, compute in it and return gradients in it. The "
           "optimizer keeps float32 masters, which checkpoints hold; with masters = false there "
           "are only bf16 parameters, and new values are rounded stochastically.";
  }
  std::string_view items() const override { return "dtype"; }

 protected:
  const FieldTable<HalfConfig>& table() const override {
    using C = HalfConfig;
    auto gradient_types = low_dtype_names();
    gradient_types.insert(gradient_types.end(), {"float32", "fp32"});
    static const FieldTable<C> table(
        std::vector<FieldRow<C>>{
            {.name = "dtype",
             .member = &C::dtype,
             .allowed = low_dtype_names(),
             .doc = "the low precision"},
            {.name = "masters",
             .member = &C::masters,
             .doc = "keep float32 masters; false: bf16 alone, with stochastic rounding"},
            {.name = "keep_weights",
             .member = &C::keep_weights,
             .doc =
                 "keep weights in dtype beside the float32 ones; the optimizer writes both, and no "
                 "microbatch casts them"},
            {.name = "gradients",
             .member = &C::gradients,
             .otherwise = "dtype with one microbatch, float32 with several",
             .allowed = gradient_types,
             .doc = "type in which gradients are summed and reduced: dtype or float32"}},
        loss_scale_fields());
    return table;
  }

  void edit(plan::Plan& plan, const HalfConfig& given, const Config& config,
            const PlanRequest& request) const override {
    plan::Precision precision;
    precision.dtype = low_dtype(config, given.dtype, name());
    precision.parameters = given.masters ? Parameters::masters : Parameters::low;
    if (!given.masters && precision.dtype != DType::bfloat16) {
      fail("half",
           "without masters parameters must be bf16, but dtype is {}: fp16 cannot represent small "
           "weights",
           graph::name_of(*precision.dtype));
    }
    precision.keep_weights = given.keep_weights;
    if (given.keep_weights && !given.masters) {
      fail("half",
           "keep_weights keeps weights in {} beside float32 masters, but masters is false: leave "
           "one "
           "of the two out",
           graph::name_of(*precision.dtype));
    }
    if (given.gradients) {
      precision.gradients = dtype_named(*given.gradients);
      if (precision.gradients != precision.dtype && precision.gradients != DType::float32) {
        fail("half", "gradients must be {} or float32, but got {}",
             graph::name_of(*precision.dtype), graph::name_of(*precision.gradients));
      }
    }
    set_loss_scale(precision, given, config, name());
    verify(precision, *request.graph);
    if (plan.precision.dtype) {
      if (plan.precision.dtype != precision.dtype) {
        fail("strategy",
             "half and amp_native must name one type, but half has {} and amp_native {}: all ops "
             "of a half model compute in its own",
             graph::name_of(*precision.dtype), graph::name_of(*plan.precision.dtype));
      }
      for (auto& decision : plan.decisions) {
        if (decision.by == "amp_native") decision.sentence = "has no effect besides half";
      }
    }
    plan.decisions.push_back({"half", sentence(precision, *request.graph)});
    plan.precision = std::move(precision);
  }

 private:
  static std::string sentence(const plan::Precision& precision, const graph::Graph& graph) {
    int64_t count = 0;
    for (const auto& input : graph.inputs) {
      count += input.kind == graph::Input::Kind::parameter &&
               graph.type(input.value).dtype == DType::float32;
    }
    if (count == 0) return "has no effect: no parameter of the model is float32";
    const auto dtype = graph::name_of(*precision.dtype);
    auto text = fmt::format("{} parameter{} and all ops but norms and losses are {}", count,
                            count == 1 ? "" : "s", dtype);
    text += precision.parameters == Parameters::masters
                ? ", with float32 masters"
                : ", without masters: the optimizer rounds stochastically";
    if (precision.gradients) {
      text += fmt::format("; gradients are {}", graph::name_of(*precision.gradients));
    }
    return text + kept_weights_sentence(precision) + loss_scale_sentence(precision);
  }
};

}  // namespace

std::shared_ptr<const Method> half() { return std::make_shared<Half>(); }

}  // namespace perigee::methods
