// gradient_accumulation: how many microbatches one optimizer step has.
#include "methods/field_table.h"

namespace perigee::methods {
namespace {

struct Accumulation {
  int64_t microbatches = 1;
};

class GradientAccumulation : public MethodWith<Accumulation> {
 public:
  std::string_view name() const override { return "gradient_accumulation"; }
  std::string_view doc() const override {
    return "Splits the global batch into microbatches whose gradients add up before the optimizer "
           "step.";
  }

 protected:
  const FieldTable<Accumulation>& table() const override {
    static const FieldTable<Accumulation> table({{.name = "microbatches",
                                                  .member = &Accumulation::microbatches,
                                                  .required = true,
                                                  .at_least = 1,
                                                  .doc = "microbatches per optimizer step"}});
    return table;
  }

  void edit(plan::Plan& plan, const Accumulation& given, const Config&,
            const PlanRequest&) const override {
    plan.microbatches = given.microbatches;
    plan.decisions.push_back(
        {"gradient_accumulation",
         fmt::format("gradients add up over {} microbatches", given.microbatches)});
  }
};

}  // namespace

std::shared_ptr<const Method> gradient_accumulation() {
  return std::make_shared<GradientAccumulation>();
}

}  // namespace perigee::methods
