// sequence_parallel and context_parallel: the sequence sharded over an axis through the whole
// model. They differ in how attention comes to all keys.
#include "base/error.h"
#include "methods/method.h"
#include "shard/sequence.h"

namespace perigee::methods {
namespace {

using shard::SequenceSharding;

class SequenceParallel : public Method {
 public:
  std::string_view name() const override { return "sequence_parallel"; }
  std::string_view doc() const override {
    return "Shards activations on their sequence over an axis of the mesh; before attention an "
           "all-to-all gives each rank the whole sequence of some heads (Ulysses). Heads must "
           "divide over the axis.";
  }
  const std::vector<Field>& fields() const override {
    static const std::vector<Field> fields = {{"axis", "string", "the axis; default `sequence`"}};
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    SequenceSharding sharding{config.fields.value("axis", std::string("sequence")),
                              SequenceSharding::Attention::heads};
    shard::place(plan, *request.graph, sharding, "sequence_parallel");
    plan.decisions.push_back(
        {"sequence_parallel",
         fmt::format("the sequence is sharded over the {} ranks of axis {}; attention exchanges it "
                     "for heads by all-to-all",
                     plan.mesh.size_of(sharding.axis), sharding.axis)});
  }
};

class ContextParallel : public Method {
 public:
  std::string_view name() const override { return "context_parallel"; }
  std::string_view doc() const override {
    return "Shards activations on their sequence over an axis of the mesh, through attention: its "
           "keys and values are gathered, or exchanged for heads.";
  }
  const std::vector<Field>& fields() const override {
    static const std::vector<Field> fields = {{"axis", "string", "the axis; default `context`"},
                                              {"attention", "string",
                                               "all_gather (default): every rank sees all keys and "
                                               "values; all_to_all: all of some heads"}};
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    SequenceSharding sharding{config.fields.value("axis", std::string("context")),
                              SequenceSharding::Attention::gather};
    const auto attention = config.fields.value("attention", std::string("all_gather"));
    if (attention == "all_to_all") {
      sharding.attention = SequenceSharding::Attention::heads;
    } else if (attention == "ring" || attention == "hierarchical") {
      fail("context_parallel", "attention is all_gather or all_to_all here, {} is not built yet",
           attention);
    } else if (attention != "all_gather") {
      fail("context_parallel", "attention is all_gather or all_to_all, but got \"{}\"{}", attention,
           did_you_mean(attention, std::vector<std::string>{"all_gather", "all_to_all"}));
    }
    shard::place(plan, *request.graph, sharding, "context_parallel");
    const bool gathers = sharding.attention == SequenceSharding::Attention::gather;
    plan.decisions.push_back(
        {"context_parallel",
         fmt::format(
             "the sequence is sharded over the {} ranks of axis {}; attention {}",
             plan.mesh.size_of(sharding.axis), sharding.axis,
             gathers ? "gathers keys and values" : "exchanges it for heads by all-to-all")});
  }
};

}  // namespace

std::shared_ptr<const Method> sequence_parallel() { return std::make_shared<SequenceParallel>(); }
std::shared_ptr<const Method> context_parallel() { return std::make_shared<ContextParallel>(); }

}  // namespace perigee::methods
