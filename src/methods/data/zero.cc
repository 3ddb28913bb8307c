// zero1, zero2: optimizer state, and with zero2 gradients, stored in parts; parameters are
// replicated, or ranks of one host hold one copy of them.
#include <fmt/format.h>

#include <algorithm>

#include "base/fail.h"
#include "methods/data/unit_options.h"
#include "plan/units.h"

namespace perigee::methods {
namespace {

// Returns whether the ranks of each group over the axes can map each other's memory.
bool share_memory(const plan::Plan& plan, const mesh::AxisSet& axes, const PlanRequest& request) {
  if (request.sharing_ranks < 2) return false;
  const auto& mesh = mesh_of_ranks(plan, request);
  for (const auto rank : mesh::ranks(mesh)) {
    for (const auto other : mesh::group_of(mesh, axes, rank)) {
      if (other / request.sharing_ranks != rank / request.sharing_ranks) return false;
    }
  }
  return true;
}

class Zero : public MethodWith<UnitConfig> {
 public:
  explicit Zero(int level) : level_(level), name_("zero" + std::to_string(level)) {}
  std::string_view name() const override { return name_; }
  std::string_view doc() const override {
    return level_ == 1
               ? "ZeRO level 1: each rank stores and updates its part of the optimizer state (and "
                 "of half's masters); gradients are reduce-scattered once a step, new weights are "
                 "all-gathered."
               : "ZeRO level 2: each rank stores its part of the optimizer state (and of half's "
                 "masters) and of the gradients, which are reduce-scattered in every microbatch; "
                 "new weights are all-gathered.";
  }

 protected:
  const FieldTable<UnitConfig>& table() const override {
    static constexpr const char* kOne = "there is one implementation";
    static const FieldTable<UnitConfig> table(
        unit_fields(), std::vector<FieldRow<UnitConfig>>{
                           {.name = "one_copy",
                            .member = &UnitConfig::one_copy,
                            .otherwise = "true where the ranks of `axis` compute on "
                                         "the CPU of one host",
                            .doc = "the ranks of `axis`, which are on one host, hold "
                                   "one copy of the weights in memory that all of "
                                   "them map: each writes its part of the new "
                                   "weights, and nothing is gathered"},
                           {.name = "use_ds_zero", .no_effect = kOne},
                           {.name = "not_use_fsdp", .no_effect = kOne}});
    return table;
  }

  void edit(plan::Plan& plan, const UnitConfig& given, const Config& config,
            const PlanRequest& request) const override {
    note_no_effects(plan, config, *this);
    if (!add_units(plan, given, request, *this, level_)) return;
    const auto refusal = plan::why_no_one_copy(plan, level_);
    if (given.one_copy.value_or(false) && !refusal.empty()) {
      fail(name_, "one_copy must be false where ranks cannot hold one copy of the weights: {}",
           refusal);
    }
    for (auto& unit : plan.units) {
      const bool wanted = given.one_copy ? *given.one_copy : share_memory(plan, unit.axes, request);
      unit.one_copy = wanted && refusal.empty();
    }
    const bool one_copy = !plan.units.empty() && plan.units[0].one_copy;
    // With half's masters the parts are those of masters; ops read whole low-precision copies.
    const bool masters = plan::stores_parts(plan, {.level = level_});
    const auto* kept = level_ == 1
                           ? (masters ? "masters and optimizer state are" : "optimizer state is")
                           : (masters ? "masters, optimizer state and gradients are"
                                      : "optimizer state and gradients are");
    plan.decisions.push_back(
        {name_,
         fmt::format("{} kept in parts: {}; gradients are reduce-scattered {}, and {}{}", kept,
                     describe_units(plan, *request.graph),
                     level_ == 1 ? "once a step" : "in every microbatch",
                     one_copy ? "each rank writes its part of the weights, of which the ranks hold "
                                "one copy in memory that all of them map"
                              : "the new weights gathered once a step",
                     masters ? ", in the low precision" : "")});
  }

 private:
  int level_;
  std::string name_;
};

}  // namespace

std::shared_ptr<const Method> zero1() { return std::make_shared<Zero>(1); }
std::shared_ptr<const Method> zero2() { return std::make_shared<Zero>(2); }

}  // namespace perigee::methods
