// sequence_parallel and context_parallel: the sequence sharded over an axis through the whole
// model. They differ in how attention comes to all keys.
#include <fmt/ranges.h>

#include <map>

#include "base/error.h"
#include "methods/method.h"
#include "methods/texts.h"
#include "shard/sequence.h"

namespace perigee::methods {
namespace {

using shard::SequenceSharding;

class SequenceParallel : public Method {
 public:
  std::string_view name() const override { return "sequence_parallel"; }
  std::string_view doc() const override {
    return "Shards activations on their sequence over axes of the mesh; before attention an "
           "all-to-all gives each rank the whole sequence of some heads (Ulysses). Heads must "
           "divide over the axes.";
  }
  const std::vector<Field>& fields() const override {
    static const std::vector<Field> fields = {
        {"axis", "any",
         "the axis, or a list of axes over all of which it is sharded; default all of the kind "
         "`sequence`"}};
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    const auto axes = axes_of(config, name(), "axis", mesh::axes_of_kind(plan.mesh, "sequence"));
    if (axes.empty()) fail(name(), "axis names one or several, but is an empty list");
    for (const auto& axis : axes) {
      const SequenceSharding sharding{axis, SequenceSharding::Attention::heads};
      shard::place(plan, *request.graph, sharding, "sequence_parallel");
    }
    plan.decisions.push_back(
        {"sequence_parallel",
         fmt::format("the sequence is sharded over the {} ranks of {} {}; attention exchanges it "
                     "for heads by all-to-all",
                     mesh::group_size(plan.mesh, axes), axes.size() == 1 ? "axis" : "axes",
                     fmt::join(axes, ", "))});
  }
};

class ContextParallel : public Method {
 public:
  std::string_view name() const override { return "context_parallel"; }
  std::string_view doc() const override {
    return "Shards activations on their sequence over an axis of the mesh, through attention: its "
           "keys and values are gathered, go round the ranks, or are exchanged for heads. Under a "
           "causal mask all ranks get the same work.";
  }
  const std::vector<Field>& fields() const override {
    static const std::vector<Field> fields = {
        {"axis", "string", "the axis; default `context`"},
        {"attention", "string",
         "all_gather (default): every rank sees all keys and values; ring: they go round, a part "
         "at "
         "a time; all_to_all: all of some heads; hierarchical: all_to_all within `inner`, a ring "
         "over `axis`"},
        {"inner", "string", "the axis of hierarchical's all_to_all; default `sequence`"},
        {"load_balance", "boolean",
         "of all_gather and ring: each rank has a piece from the front of the sequence and one "
         "from "
         "its end; default where attention is causal and the sequence divides so"}};
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    using Attention = SequenceSharding::Attention;
    static const std::map<std::string, Attention> kinds = {{"all_gather", Attention::gather},
                                                           {"ring", Attention::ring},
                                                           {"all_to_all", Attention::heads},
                                                           {"hierarchical", Attention::ring}};
    const auto attention = config.fields.value("attention", std::string("all_gather"));
    const auto kind = kinds.find(attention);
    if (kind == kinds.end()) {
      std::vector<std::string> names;
      for (const auto& [name, value] : kinds) names.push_back(name);
      fail("context_parallel", "attention is {}, but got \"{}\"{}", fmt::join(names, ", "),
           attention, did_you_mean(attention, names));
    }
    SequenceSharding sharding{config.fields.value("axis", std::string("context")), kind->second};
    const auto& balance = config.fields.find("load_balance");
    if (balance != config.fields.end()) {
      sharding.zigzag = balance->get<bool>();
      if (*sharding.zigzag && sharding.attention == Attention::heads) {
        fail("context_parallel",
             "load_balance is of attention that splits the sequence, but all_to_all splits heads");
      }
    }
    std::string inner;
    if (attention == "hierarchical") {
      inner = config.fields.value("inner", std::string("sequence"));
      if (inner == sharding.axis) {
        fail("context_parallel", "axis and inner are two axes, but both are {}", inner);
      }
      shard::place(plan, *request.graph, {inner, Attention::heads}, "context_parallel");
    } else if (config.fields.contains("inner")) {
      fail("context_parallel", "inner is of attention = \"hierarchical\", but attention is {}",
           attention);
    }
    const bool zigzag = shard::place(plan, *request.graph, sharding, "context_parallel");
    plan.decisions.push_back(
        {"context_parallel",
         fmt::format("the sequence is sharded over the {} ranks of axis {}{}; attention {}{}",
                     plan.mesh.size_of(sharding.axis), sharding.axis,
                     zigzag ? " (a piece from its front and one from its end each)" : "",
                     inner.empty() ? ""
                                   : fmt::format("exchanges it for heads over the {} ranks of {}, ",
                                                 plan.mesh.size_of(inner), inner),
                     how(sharding.attention))});
  }

 private:
  static std::string_view how(SequenceSharding::Attention attention) {
    switch (attention) {
      case SequenceSharding::Attention::heads:
        return "exchanges it for heads by all-to-all";
      case SequenceSharding::Attention::gather:
        return "gathers keys and values";
      case SequenceSharding::Attention::ring:
        return "sends keys and values round";
    }
    return "";
  }
};

}  // namespace

std::shared_ptr<const Method> sequence_parallel() { return std::make_shared<SequenceParallel>(); }
std::shared_ptr<const Method> context_parallel() { return std::make_shared<ContextParallel>(); }

}  // namespace perigee::methods
