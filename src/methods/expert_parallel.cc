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
         "an axis, or a list of them; default `expert`, over which the batch is then sharded too"},
        {"tensor", "string", "the axis over which each expert is split inside; default none"}};
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    shard::ExpertParallel experts;
    experts.axes = config.fields.contains("axis")
                       ? texts(config.fields["axis"], "expert_parallel", "axis")
                       : std::vector<std::string>{"expert"};
    experts.tensor = config.fields.value("tensor", std::string());
    auto batch = mesh::split_axes(plan.batch_axes);
    const auto in_batch = [&](const std::string& axis) {
      return std::find(batch.begin(), batch.end(), axis) != batch.end();
    };
    for (const auto& axis : experts.axes) {
      if (axis == "expert" && !in_batch(axis) && plan.mesh.find(axis) >= 0) {
        plan.batch_axes += ",expert";
        batch.push_back(axis);
      }
      if (in_batch(axis)) experts.tokens.push_back(axis);
    }
    if (in_batch(experts.tensor)) {
      fail("expert_parallel",
           "experts are split over an axis that does not split the batch, but {} does",
           experts.tensor);
    }
    const auto weights = shard::place(plan, *request.graph, experts);
    for (const auto& axis : experts.tokens) check_order(plan, experts.axes, batch, axis);
    int64_t ranks = 1;
    for (const auto& axis : experts.axes) ranks *= plan.mesh.size_of(axis);
    plan.decisions.push_back(
        {"expert_parallel",
         fmt::format(
             "experts ({}{}) are shared out over the {} ranks of {}{}; {}", weights.front(),
             weights.size() > 1 ? ", ..." : "", ranks, fmt::join(experts.axes, ","),
             experts.tensor.empty() ? "" : fmt::format(", each split over {}", experts.tensor),
             experts.tokens.empty() ? "every rank has all tokens for them"
                                    : fmt::format("tokens are sent to them over {}",
                                                  fmt::join(experts.tokens, ",")))});
  }

 private:
  // What the ranks of the axis exchange is one piece of the batch: axes that cut it further are
  // inner ones.
  static void check_order(const plan::Plan& plan, const std::vector<std::string>& experts,
                          const std::vector<std::string>& batch, const std::string& axis) {
    for (const auto& other : batch) {
      const bool is_ours = std::find(experts.begin(), experts.end(), other) != experts.end();
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
