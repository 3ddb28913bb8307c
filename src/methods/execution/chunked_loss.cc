// chunked_loss: the loss over the classes, a chunk of the rows at a time.
#include "base/fail.h"
#include "methods/field_table.h"
#include "schedule/schedule.h"

namespace perigee::methods {
namespace {

struct ChunkedLossConfig {
  int64_t chunks = 8;
};

class ChunkedLoss : public MethodWith<ChunkedLossConfig> {
 public:
  std::string_view name() const override { return "chunked_loss"; }
  std::string_view doc() const override {
    return "Computes logits, cross entropy and the gradients of both in chunks of rows, so that no "
           "more than a chunk of the logits exists at a time. For models with a large vocabulary.";
  }

 protected:
  const FieldTable<ChunkedLossConfig>& table() const override {
    using C = ChunkedLossConfig;
    static const FieldTable<C> table({{.name = "chunks",
                                       .member = &C::chunks,
                                       .at_least = 2,
                                       .doc = "chunks of a rank's rows of a microbatch (tokens)"}});
    return table;
  }

  void edit(plan::Plan& plan, const ChunkedLossConfig& given, const Config&,
            const PlanRequest&) const override {
    const bool delays = plan.overlap.weights || !plan.overlap.deferred.empty() ||
                        (plan.pipeline.cuts() && splits_backward(plan.pipeline.schedule));
    if (delays) {
      fail("chunked_loss",
           "gradients of weights must be computed with those of their inputs, but {} delays "
           "them, so that all gradients of logits would be kept: leave one of the two out",
           plan.overlap.weights || !plan.overlap.deferred.empty()
               ? "overlap"
               : "the schedule " + plan.pipeline.schedule);
    }
    plan.loss_chunks = given.chunks;
    plan.decisions.push_back(
        {"chunked_loss",
         fmt::format("logits, loss and their gradients are computed in at most {} chunks of "
                     "rows, in the backward pass",
                     given.chunks)});
  }
};

}  // namespace

std::shared_ptr<const Method> chunked_loss() { return std::make_shared<ChunkedLoss>(); }

}  // namespace perigee::methods
