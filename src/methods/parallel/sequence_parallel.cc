// sequence_parallel and context_parallel: the sequence sharded over an axis through the whole
// model. They differ in how attention reads all keys.
#include <fmt/ranges.h>

#include "base/fail.h"
#include "methods/field_table.h"
#include "shard/layouts/sequence.h"

namespace perigee::methods {
namespace {

using shard::SequenceSharding;

struct SequenceConfig {
  std::optional<mesh::AxisSet> axis;
};

class SequenceParallel : public MethodWith<SequenceConfig> {
 public:
  std::string_view name() const override { return "sequence_parallel"; }
  std::string_view doc() const override {
    return "Shards activations on their sequence over axes of the mesh; before attention an "
           "all-to-all gives each rank the whole sequence of some heads (Ulysses). The number of "
           "heads must be a multiple of the ranks.";
  }

 protected:
  const FieldTable<SequenceConfig>& table() const override {
    static const FieldTable<SequenceConfig> table(
        {{.name = "axis",
          .member = &SequenceConfig::axis,
          .otherwise = "all of the kind `sequence`",
          .doc = "the axis, or a list of axes, over all of which the sequence is sharded"}});
    return table;
  }

  void edit(plan::Plan& plan, const SequenceConfig& given, const Config&,
            const PlanRequest& request) const override {
    const auto axes = given.axis ? given.axis->names() : mesh::axes_of_kind(plan.mesh, "sequence");
    if (axes.empty()) fail(name(), "axis must name at least one axis, but is an empty list");
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

// Attention of context_parallel.
enum class ContextAttention : unsigned char { all_gather, ring, all_to_all, hierarchical };

struct ContextConfig {
  std::string axis = "context";
  ContextAttention attention = ContextAttention::all_gather;
  std::string inner = "sequence";
  std::optional<bool> load_balance;
};

class ContextParallel : public MethodWith<ContextConfig> {
 public:
  std::string_view name() const override { return "context_parallel"; }
  std::string_view doc() const override {
    return "Shards activations on their sequence over an axis of the mesh, through attention: its "
           "keys and values are all-gathered, sent around a ring, or exchanged for heads. Under a "
           "causal mask all ranks get the same work.";
  }

 protected:
  const FieldTable<ContextConfig>& table() const override {
    using C = ContextConfig;
    static const FieldTable<C> table(
        {{.name = "axis", .member = &C::axis, .doc = "the axis"},
         {.name = "attention",
          .member = &C::attention,
          .allowed = {"all_gather", "ring", "all_to_all", "hierarchical"},
          .doc = "all_gather: every rank reads all keys and values; ring: they go around the ranks "
                 "in shards; all_to_all: each rank has all keys of some heads; hierarchical: "
                 "all_to_all over `inner`, a ring over `axis`"},
         {.name = "inner", .member = &C::inner, .doc = "hierarchical: the axis of the all_to_all"},
         {.name = "load_balance",
          .member = &C::load_balance,
          .otherwise = "true where attention is causal and the sequence divides into 2 x ranks "
                       "chunks",
          .doc = "all_gather and ring: zigzag, each rank has one chunk from the start of the "
                 "sequence and one from its end"}});
    return table;
  }

  void edit(plan::Plan& plan, const ContextConfig& given, const Config& config,
            const PlanRequest& request) const override {
    using Attention = SequenceSharding::Attention;
    constexpr Attention kShardings[] = {Attention::gather, Attention::ring, Attention::heads,
                                        Attention::ring};  // by ContextAttention
    SequenceSharding sharding{given.axis, kShardings[static_cast<int>(given.attention)]};
    sharding.zigzag = given.load_balance;
    if (given.load_balance.value_or(false) && sharding.attention == Attention::heads) {
      fail("context_parallel",
           "load_balance requires attention that splits the sequence, but all_to_all splits heads");
    }
    std::string inner;
    if (given.attention == ContextAttention::hierarchical) {
      inner = given.inner;
      if (inner == sharding.axis) {
        fail("context_parallel", "axis and inner must be two axes, but both are {}", inner);
      }
      shard::place(plan, *request.graph, {inner, Attention::heads}, "context_parallel");
    } else if (config.has("inner")) {
      fail("context_parallel", "inner requires attention = \"hierarchical\", but attention is {}",
           config.fields.value("attention", "all_gather"));
    }
    const bool zigzag = shard::place(plan, *request.graph, sharding, "context_parallel");
    plan.decisions.push_back(
        {"context_parallel",
         fmt::format("the sequence is sharded over the {} ranks of axis {}{}; attention {}{}",
                     plan.mesh.size_of(sharding.axis), sharding.axis,
                     zigzag ? " (zigzag: one chunk from its start and one from its end each)" : "",
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
        return "sends keys and values around a ring";
    }
    return "";
  }
};

}  // namespace

std::shared_ptr<const Method> sequence_parallel() { return std::make_shared<SequenceParallel>(); }
std::shared_ptr<const Method> context_parallel() { return std::make_shared<ContextParallel>(); }

}  // namespace perigee::methods
