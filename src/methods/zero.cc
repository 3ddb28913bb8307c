// zero1, zero2: optimizer state, and with zero2 gradients, kept in parts; parameters stay whole.
#include "base/error.h"
#include "methods/method.h"
#include "methods/unit_options.h"
#include "plan/units.h"

namespace perigee::methods {
namespace {

class Zero : public Method {
 public:
  explicit Zero(int level) : level_(level), name_("zero" + std::to_string(level)) {
    fields_ = unit_fields();
    fields_.push_back({"use_ds_zero", "boolean", "no effect: there is one implementation"});
    fields_.push_back({"not_use_fsdp", "boolean", "no effect: there is one implementation"});
  }
  std::string_view name() const override { return name_; }
  std::string_view doc() const override {
    return level_ == 1
               ? "ZeRO level 1: each rank keeps and updates its part of the optimizer's state (and "
                 "of "
                 "half's masters); gradients are reduce-scattered once a step, new weights "
                 "gathered."
               : "ZeRO level 2: each rank keeps its part of the optimizer's state (and of half's "
                 "masters) and of the gradients, which are reduce-scattered in every microbatch; "
                 "new "
                 "weights are gathered.";
  }
  const std::vector<Field>& fields() const override { return fields_; }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    for (const auto* key : {"use_ds_zero", "not_use_fsdp"}) {
      note_no_effect(plan, config, *this, key, "there is one implementation");
    }
    if (!add_units(plan, config, request, *this, level_)) return;
    // Beside half's masters: what ops read is whole.
    const bool masters = plan::stores_parts(plan, {.level = level_});
    const auto* kept = level_ == 1
                           ? (masters ? "masters and optimizer state are" : "optimizer state is")
                           : (masters ? "masters, optimizer state and gradients are"
                                      : "optimizer state and gradients are");
    plan.decisions.push_back(
        {name_, fmt::format("{} kept in parts: {}; gradients are reduce-scattered {}, and the new "
                            "weights gathered once a step{}",
                            kept, describe_units(plan, *request.graph),
                            level_ == 1 ? "once a step" : "in every microbatch",
                            masters ? ", in the low precision" : "")});
  }

 private:
  int level_;
  std::string name_;
  std::vector<Field> fields_;
};

}  // namespace

std::shared_ptr<const Method> zero1() { return std::make_shared<Zero>(1); }
std::shared_ptr<const Method> zero2() { return std::make_shared<Zero>(2); }

}  // namespace perigee::methods
