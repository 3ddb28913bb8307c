// offload: activations, parameters or optimizer state in host memory while the device does not
// need them.
#include <algorithm>

#include "base/fail.h"
#include "methods/field_table.h"
#include "methods/names.h"
#include "methods/texts.h"

namespace perigee::methods {
namespace {

struct OffloadConfig {
  std::optional<int64_t> layers;
  bool optimizer = false;
  bool parameters = false;
  int64_t prefetch = plan::Offload{}.prefetch;
};

class Offload : public MethodWith<OffloadConfig> {
 public:
  std::string_view name() const override { return "offload"; }
  std::string_view doc() const override {
    return "Keeps activations of the matched scopes, parameters or optimizer state in host memory "
           "while the device does not need them. Copies overlap the ops.";
  }
  std::string_view items() const override { return "scope or module type, ..."; }

 protected:
  const FieldTable<OffloadConfig>& table() const override {
    using C = OffloadConfig;
    static const FieldTable<C> table(
        {{.name = "layers",
          .member = &C::layers,
          .otherwise = "all",
          .at_least = 1,
          .doc = "only this number of the matched scopes, from the first on (without a list: of "
                 "`blocks.*`), "
                 "since the backward pass needs the last ones at once"},
         {.name = "optimizer", .member = &C::optimizer, .doc = "offload optimizer state"},
         {.name = "parameters",
          .member = &C::parameters,
          .doc = "with fsdp: offload each rank's parts of the parameters"},
         {.name = "prefetch",
          .member = &C::prefetch,
          .at_least = 0,
          .doc = "scopes, or buckets, before their use at which the copy back starts"}});
    return table;
  }

  void edit(plan::Plan& plan, const OffloadConfig& given, const Config& config,
            const PlanRequest& request) const override {
    auto& offload = plan.offload;
    std::vector<std::string> kept;
    auto patterns = texts(config.items, name(), "scopes");
    if (patterns.empty() && given.layers) patterns = {"blocks.*"};
    if (!patterns.empty()) {
      auto scopes = matching_scopes(*request.graph, patterns, name());
      if (given.layers) {
        if (*given.layers > std::ssize(scopes)) {
          fail("offload", "layers must be at most the {} matched scopes, but got {}", scopes.size(),
               *given.layers);
        }
        scopes.resize(static_cast<size_t>(*given.layers));
      }
      kept.push_back(fmt::format("saved activations of {} scope{} ({}{})", scopes.size(),
                                 scopes.size() == 1 ? "" : "s", scopes.front(),
                                 scopes.size() == 1 ? "" : " to " + scopes.back()));
      offload.activations = std::move(scopes);
    }
    if (given.parameters) {
      if (std::none_of(plan.units.begin(), plan.units.end(),
                       [](const plan::Unit& unit) { return unit.level == 3; })) {
        fail("offload",
             "parameters = true requires fsdp over several ranks, whose units are copied to the "
             "device when they are gathered, but the plan has no such units");
      }
      offload.parameters = true;
      kept.push_back("the ranks' parts of parameters");
    }
    if (given.optimizer) {
      offload.optimizer = true;
      kept.push_back("optimizer state");
    }
    if (kept.empty()) {
      fail("offload",
           "give scopes whose activations are offloaded, as in offload {{ \"blocks.*\" }}, "
           "optimizer = true or parameters = true, but got none");
    }
    offload.prefetch = given.prefetch;
    plan.decisions.push_back(
        {"offload",
         fmt::format("{} {} in host memory, copied back {}", join(kept),
                     kept.size() == 1 && kept[0] == "optimizer state" ? "is" : "are",
                     offload.prefetch == 0 ? std::string("without prefetch")
                                           : fmt::format("{} ahead", offload.prefetch))});
  }
};

}  // namespace

std::shared_ptr<const Method> offload() { return std::make_shared<Offload>(); }

}  // namespace perigee::methods
