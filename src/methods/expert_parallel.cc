// expert_parallel: the experts of a mixture shared out over axes; tokens are sent to them.
#include "shard/expert_parallel.h"

#include <algorithm>

#include "base/error.h"
#include "methods/method.h"
#include "methods/texts.h"

namespace perigee::methods {
namespace {

class ExpertParallel : public Method {
 public:
  std::string_view name() const override { return "expert_parallel"; }
  std::string_view doc() const override {
    return "Shares the experts of a mixture out over the ranks of axes. Where the batch is sharded "
           "over them too, tokens are sent to the ranks of their experts and back, as many as "
           "there are; where tokens are whole, each rank serves its experts and the results are "
           "summed.";
  }
  const std::vector<Field>& fields() const override {
    static const std::vector<Field> fields = {
        {"axis", "any",
         "an axis, or a list of them, {} for none; default all of the kind `expert`, over which "
         "the batch is then sharded too"},
        {"tensor", "any",
         "an axis, or a list of them, over which each expert is split inside, in place of "
         "tensor_parallel's; over one of the kind `expert` the batch is sharded too, and its ranks "
         "gather each other's tokens; default none"}};
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    shard::ExpertParallel experts;
    experts.tensor = axes_of(config, name(), "tensor", {});
    auto unsplit = mesh::axes_of_kind(plan.mesh, "expert");
    std::erase_if(unsplit, [&](const auto& axis) { return contains(experts.tensor, axis); });
    experts.axes = axes_of(config, name(), "axis", unsplit);
    auto batch = mesh::split_axes(plan.batch_axes);
    for (const auto* axes : {&experts.axes, &experts.tensor}) {
      for (const auto& axis : *axes) {
        if (mesh::kind_of(axis) == "expert" && !contains(batch, axis) &&
            plan.mesh.find(axis) >= 0) {
          plan.batch_axes += "," + axis;
          batch.push_back(axis);
        }
        if (!contains(batch, axis)) continue;
        (axes == &experts.axes ? experts.tokens : experts.gathered).push_back(axis);
      }
    }
    for (const auto& axis : experts.axes) {
      if (!contains(experts.tensor, axis)) continue;
      fail(name(), "an axis shares experts out or splits each of them, but {} is to do both", axis);
    }
    const auto weights = shard::place(plan, *request.graph, experts);
    for (const auto& axis : experts.tokens) check_order(plan, experts, batch, axis);
    plan.decisions.push_back({name().data(), sentence(plan, experts, weights)});
  }

 private:
  static bool contains(const std::vector<std::string>& axes, const std::string& axis) {
    return std::find(axes.begin(), axes.end(), axis) != axes.end();
  }

  static std::string sentence(const plan::Plan& plan, const shard::ExpertParallel& experts,
                              const std::vector<std::string>& weights) {
    const auto shared =
        experts.axes.empty()
            ? std::string("lie on every rank")
            : fmt::format("are shared out over the {} ranks of {}",
                          mesh::group_size(plan.mesh, experts.axes), fmt::join(experts.axes, ","));
    const auto split =
        experts.tensor.empty()
            ? std::string()
            : fmt::format(", each split over {}{}", fmt::join(experts.tensor, ","),
                          experts.gathered.empty() ? "" : ", whose ranks gather their tokens");
    return fmt::format("experts ({}{}) {}{}; {}", weights.front(),
                       weights.size() > 1 ? ", ..." : "", shared, split,
                       experts.tokens.empty() ? "every rank has all tokens for them"
                                              : fmt::format("tokens are sent to them over {}",
                                                            fmt::join(experts.tokens, ",")));
  }

  // What the ranks of the axis exchange is one piece of the batch: axes that cut it further are
  // inner ones.
  static void check_order(const plan::Plan& plan, const shard::ExpertParallel& experts,
                          const std::vector<std::string>& batch, const std::string& axis) {
    for (const auto& other : batch) {
      const bool is_ours = contains(experts.axes, other) || contains(experts.gathered, other);
      const int at = plan.mesh.find(other);
      if (is_ours || at < 0 || plan.mesh.axes[at].size == 1) continue;
      if (at > plan.mesh.find(axis)) continue;
      fail("expert_parallel",
           "experts' axis {} stands before the other axes of the batch in parallel_mode, but {} "
           "stands before it",
           axis, other);
    }
  }
};

}  // namespace

std::shared_ptr<const Method> expert_parallel() { return std::make_shared<ExpertParallel>(); }

}  // namespace perigee::methods
