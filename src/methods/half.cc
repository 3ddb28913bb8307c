// half: the model in a low precision, with or without float32 masters of its parameters.
#include "base/error.h"
#include "methods/low_precision.h"

namespace perigee::methods {
namespace {

using graph::DType;
using Parameters = plan::Precision::Parameters;

class Half : public Method {
 public:
  std::string_view name() const override { return "half"; }
  std::string_view doc() const override {
    return "The model in fp16 or bf16: ops read parameters and floating inputs in it and compute "
           "in "
           "it, but for norms and losses, and gradients come out in it. The optimizer keeps "
           "float32 "
           "masters, which checkpoints hold; or, with masters = false, bf16 parameters are all "
           "there "
           "is, and new values are rounded up or down at random, right on average.";
  }
  std::string_view items() const override { return "dtype"; }
  const std::vector<Field>& fields() const override {
    static const auto fields = with_loss_scale(
        {{"dtype", "string", "`fp16` or `bf16`; default fp16"},
         {"masters", "boolean", "false: bf16 alone, rounded at random; default true"},
         {"gradients", "string",
          "what gradients are summed and reduced in, dtype or `float32`; default dtype with one "
          "microbatch, float32 with several"}});
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    plan::Precision precision;
    precision.dtype = low_dtype(config, name());
    const bool masters = config.fields.value("masters", true);
    precision.parameters = masters ? Parameters::masters : Parameters::low;
    if (!masters && precision.dtype != DType::bfloat16) {
      fail("half",
           "without masters parameters must be bf16, but dtype is {}: fp16 has no room for small "
           "weights",
           graph::name_of(*precision.dtype));
    }
    if (config.fields.contains("gradients")) {
      precision.gradients =
          dtype_named(config.fields["gradients"].get<std::string>(), name(), "gradients");
      if (precision.gradients != precision.dtype && precision.gradients != DType::float32) {
        fail("half", "gradients must be {} or float32, but got {}",
             graph::name_of(*precision.dtype), graph::name_of(*precision.gradients));
      }
    }
    set_loss_scale(precision, config, name());
    verify(precision, *request.graph);
    if (plan.precision.dtype) {
      if (plan.precision.dtype != precision.dtype) {
        fail("strategy",
             "half and amp_native must name one type, but half has {} and amp_native {}: all ops "
             "of a half model compute in its own",
             graph::name_of(*precision.dtype), graph::name_of(*plan.precision.dtype));
      }
      for (auto& decision : plan.decisions) {
        if (decision.by == "amp_native") decision.sentence = "has nothing to do beside half";
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
    const auto dtype = graph::name_of(*precision.dtype);
    auto text = fmt::format("{} parameter{} and all ops but norms and losses are {}", count,
                            count == 1 ? "" : "s", dtype);
    text += precision.parameters == Parameters::masters
                ? ", with float32 masters"
                : ", without masters: the optimizer rounds at random";
    if (precision.gradients) {
      text += fmt::format("; gradients are {}", graph::name_of(*precision.gradients));
    }
    return text + loss_scale_sentence(precision);
  }
};

}  // namespace

std::shared_ptr<const Method> half() { return std::make_shared<Half>(); }

}  // namespace perigee::methods
