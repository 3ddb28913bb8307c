// expert_parallel: the experts of a mixture sharded over axes; tokens are sent to them.
#include "shard/layouts/expert_parallel.h"

#include <algorithm>

#include "base/fail.h"
#include "methods/field_table.h"

namespace perigee::methods {
namespace {

struct ExpertConfig {
  std::optional<mesh::AxisSet> axis;
  mesh::AxisSet tensor;
};

class ExpertParallelMethod : public MethodWith<ExpertConfig> {
 public:
  std::string_view name() const override { return "expert_parallel"; }
  std::string_view doc() const override {
    return "Shards the experts of a mixture over the ranks of axes. Where the batch is sharded "
           "over them too, tokens are sent to the ranks of their experts and back, without "
           "padding; where tokens are replicated, each rank computes its experts and the results "
           "are summed.";
  }

 protected:
  const FieldTable<ExpertConfig>& table() const override {
    static const FieldTable<ExpertConfig> table(
        {{.name = "axis",
          .member = &ExpertConfig::axis,
          .otherwise = "all of the kind `expert`, over which the batch is then sharded too",
          .doc = "the axis, or a list of axes, of the experts; {} for none"},
         {.name = "tensor",
          .member = &ExpertConfig::tensor,
          .doc = "the axis, or a list of axes, over which each expert is split, in place of "
                 "tensor_parallel's; over one of the kind `expert` the batch is sharded too, and "
                 "its ranks gather each other's tokens"}});
    return table;
  }

  void edit(plan::Plan& plan, const ExpertConfig& given, const Config&,
            const PlanRequest& request) const override {
    shard::ExpertParallel experts;
    experts.tensor = given.tensor.names();
    auto unsplit = mesh::axes_of_kind(plan.mesh, "expert");
    std::erase_if(unsplit, [&](const auto& axis) { return given.tensor.contains(axis); });
    experts.axes = given.axis ? given.axis->names() : unsplit;
    for (const auto* axes : {&experts.axes, &experts.tensor}) {
      for (const auto& axis : *axes) {
        if (mesh::kind_of(axis) == "expert" && plan.mesh.find(axis) >= 0) {
          plan.batch_axes.insert(axis);
        }
        if (!plan.batch_axes.contains(axis)) continue;
        (axes == &experts.axes ? experts.tokens : experts.gathered).push_back(axis);
      }
    }
    for (const auto& axis : experts.axes) {
      if (!given.tensor.contains(axis)) continue;
      fail(name(), "an axis shards the experts or splits each of them, but {} is given for both",
           axis);
    }
    const auto weights = shard::place(plan, *request.graph, experts);
    for (const auto& axis : experts.tokens) check_order(plan, experts, axis);
    plan.decisions.push_back({name().data(), sentence(plan, experts, weights)});
  }

 private:
  static bool contains(const std::vector<std::string>& axes, const std::string& axis) {
    return std::find(axes.begin(), axes.end(), axis) != axes.end();
  }

  static std::string sentence(const plan::Plan& plan, const shard::ExpertParallel& experts,
                              const std::vector<std::string>& weights) {
    const auto shared = experts.axes.empty()
                            ? std::string("are replicated on every rank")
                            : fmt::format("are sharded over the {} ranks of {}",
                                          mesh::group_size(plan.mesh, experts.axes),
                                          fmt::join(experts.axes, ","));
    const auto split = experts.tensor.empty()
                           ? std::string()
                           : fmt::format(", each split over {}{}", fmt::join(experts.tensor, ","),
                                         experts.gathered.empty()
                                             ? ""
                                             : ", whose ranks gather their tokens");
    return fmt::format("experts ({}{}) {}{}; {}", weights.front(),
                       weights.size() > 1 ? ", ..." : "", shared, split,
                       experts.tokens.empty() ? "every rank has all tokens for them"
                                              : fmt::format("tokens are sent to them over {}",
                                                            fmt::join(experts.tokens, ",")));
  }

  // The ranks of the axis exchange one shard of the batch: axes that shard it further must come
  // after it in the mesh.
  static void check_order(const plan::Plan& plan, const shard::ExpertParallel& experts,
                          const std::string& axis) {
    for (const auto& other : plan.batch_axes) {
      const bool is_ours = contains(experts.axes, other) || contains(experts.gathered, other);
      const int at = plan.mesh.find(other);
      if (is_ours || at < 0 || plan.mesh.axes[at].size == 1) continue;
      if (at > plan.mesh.find(axis)) continue;
      fail("expert_parallel",
           "axis {} of the experts must come before the other axes of the batch in parallel_mode, "
           "but {} comes before it",
           axis, other);
    }
  }
};

}  // namespace

std::shared_ptr<const Method> expert_parallel() { return std::make_shared<ExpertParallelMethod>(); }

}  // namespace perigee::methods
