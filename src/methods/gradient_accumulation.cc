// gradient_accumulation: how many microbatches one optimizer step has.
#include "base/error.h"
#include "methods/method.h"

namespace perigee::methods {
namespace {

class GradientAccumulation : public Method {
 public:
  std::string_view name() const override { return "gradient_accumulation"; }
  std::string_view doc() const override {
    return "Splits the global batch into microbatches whose gradients add up before the optimizer "
           "step.";
  }
  const std::vector<Field>& fields() const override {
    static const std::vector<Field> fields = {
        {"microbatches", "integer", "microbatches per optimizer step", true}};
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request&) const override {
    const auto count = config.fields["microbatches"].get<int64_t>();
    if (count < 1)
      fail("gradient_accumulation", "microbatches must be at least 1, but got {}", count);
    plan.microbatches = count;
    plan.decisions.push_back(
        {"gradient_accumulation", fmt::format("gradients add up over {} microbatches", count)});
  }
};

}  // namespace

std::shared_ptr<const Method> gradient_accumulation() {
  return std::make_shared<GradientAccumulation>();
}

}  // namespace perigee::methods
