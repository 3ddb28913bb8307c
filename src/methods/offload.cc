// offload: what lies in the host's memory while the device does not need it.
#include <algorithm>

#include "base/error.h"
#include "methods/names.h"
#include "methods/texts.h"

namespace perigee::methods {
namespace {

bool flag(const Config& config, const char* field) {
  return config.fields.contains(field) && config.fields[field].get<bool>();
}

class Offload : public Method {
 public:
  std::string_view name() const override { return "offload"; }
  std::string_view doc() const override {
    return "Keeps activations of the matched scopes, parameters or optimizer state in the host's "
           "memory while the device does not need them. Copies run beside the ops.";
  }
  std::string_view items() const override { return "scope or module type, ..."; }
  const std::vector<Field>& fields() const override {
    static const std::vector<Field> fields = {
        {"layers", "integer",
         "only the first so many of the matched scopes (default `blocks.*`): the last ones are "
         "needed at once"},
        {"optimizer", "boolean", "optimizer state; default false"},
        {"parameters", "boolean", "with fsdp: each rank's parts of the parameters; default false"},
        {"prefetch", "integer",
         "copy back so many scopes, or buckets, before they are needed; default 1"}};
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    auto& offload = plan.offload;
    const auto& fields = config.fields;
    std::vector<std::string> kept;
    auto patterns = texts(config.items, name(), "scopes");
    if (patterns.empty() && fields.contains("layers")) patterns = {"blocks.*"};
    if (!patterns.empty()) {
      auto scopes = matching_scopes(*request.graph, patterns, name());
      if (fields.contains("layers")) {
        const auto layers = fields["layers"].get<int64_t>();
        if (layers < 1 || layers > std::ssize(scopes)) {
          fail("offload", "layers must be 1 to the {} matched scopes, but got {}", scopes.size(),
               layers);
        }
        scopes.resize(static_cast<size_t>(layers));
      }
      kept.push_back(fmt::format("what {} scope{} ({}{}) leave{} to the backward pass",
                                 scopes.size(), scopes.size() == 1 ? "" : "s", scopes.front(),
                                 scopes.size() == 1 ? "" : " to " + scopes.back(),
                                 scopes.size() == 1 ? "s" : ""));
      offload.activations = std::move(scopes);
    }
    if (flag(config, "parameters")) {
      if (std::none_of(plan.units.begin(), plan.units.end(),
                       [](const plan::Unit& unit) { return unit.level == 3; })) {
        fail("offload",
             "parameters are copied to the device where a unit of them is gathered: use fsdp over "
             "several ranks beside it, but the plan has no such units");
      }
      offload.parameters = true;
      kept.push_back("the ranks' parts of parameters");
    }
    if (flag(config, "optimizer")) {
      offload.optimizer = true;
      kept.push_back("optimizer state");
    }
    if (kept.empty()) {
      fail("offload",
           "say what lies on the host: scopes for their activations, as in offload {{ "
           "\"blocks.*\" }}, optimizer = true or parameters = true, but got none");
    }
    if (fields.contains("prefetch")) {
      offload.prefetch = fields["prefetch"].get<int64_t>();
      if (offload.prefetch < 0) {
        fail("offload", "prefetch must be at least 0, but got {}", offload.prefetch);
      }
    }
    plan.decisions.push_back(
        {"offload",
         fmt::format("{} lie{} in the host's memory, copied back {}", join(kept),
                     kept.size() == 1 && kept[0] == "optimizer state" ? "s" : "",
                     offload.prefetch == 0 ? std::string("when it is needed")
                                           : fmt::format("{} ahead", offload.prefetch))});
  }
};

}  // namespace

std::shared_ptr<const Method> offload() { return std::make_shared<Offload>(); }

}  // namespace perigee::methods
