// pipeline_parallel: the layers spread over stages, microbatches running through them
// by a schedule.
#include <fmt/ranges.h>

#include <algorithm>

#include "base/fail.h"
#include "graph/flops.h"
#include "methods/field_table.h"
#include "methods/names.h"
#include "methods/parallel/pipeline_cuts.h"
#include "methods/precision/low_precision.h"
#include "methods/texts.h"
#include "plan/pipeline.h"
#include "schedule/description.h"
#include "schedule/schedule.h"

namespace perigee::methods {
namespace {

using graph::Graph;

struct PipelineConfig {
  std::string axis = "pipe";
  std::string schedule = std::string(schedule::kDefaultSchedule);
  std::optional<int64_t> chunks;
  std::vector<std::string> starts;
  Json holds;
  Names blocks;
  Balance balance = Balance::work;
  std::optional<double> tolerance;
  std::optional<int64_t> layers;
  std::vector<int64_t> part_layers;
  int64_t group = plan::Pipeline{}.group;
  int64_t extra = plan::Pipeline{}.extra;
  std::optional<std::string> dtype;
  std::vector<double> costs = {plan::Pipeline{}.forward, plan::Pipeline{}.backward,
                               plan::Pipeline{}.weights, plan::Pipeline{}.transfer};
};

std::vector<std::string> known_schedules() {
  const auto names = schedule_names();
  return {names.begin(), names.end()};
}

class PipelineParallel : public MethodWith<PipelineConfig> {
 public:
  std::string_view name() const override { return "pipeline_parallel"; }
  std::string_view doc() const override {
    return "Spreads the layers over the stages of an axis of the mesh; microbatches run through "
           "them in the order of a schedule. Without starts the parts are cut between blocks so "
           "that the slowest part has the least work, or with tolerance so that parts receive "
           "fewer bytes.";
  }

 protected:
  const FieldTable<PipelineConfig>& table() const override {
    using C = PipelineConfig;
    static const FieldTable<C> table(
        {{.name = "axis", .member = &C::axis, .doc = "the axis of the stages"},
         {.name = "schedule",
          .member = &C::schedule,
          .allowed = known_schedules(),
          .doc = "order of forward and backward passes on each stage"},
         {.name = "chunks",
          .member = &C::chunks,
          .otherwise = fmt::format("2 for {}, else 1", schedule::names_where([](const auto& d) {
                                     return d.default_chunks() == 2;
                                   })),
          .at_least = 1,
          .doc = "parts of a stage"},
         {.name = "starts",
          .member = &C::starts,
          .otherwise = "chosen by balance and tolerance",
          .doc = "the scopes (`blocks.4`) at which the parts after the first begin: one fewer than "
                 "parts"},
         {.name = "holds",
          .member = &C::holds,
          .type = FieldType::list,
          .doc = "with starts: for each part, scopes or module types that must begin in it"},
         {.name = "blocks",
          .member = &C::blocks,
          .otherwise =
              "the longest row of numbered modules (`blocks.*`), or all modules where none "
              "are numbered",
          .doc = "scopes or module types between which parts may be cut"},
         {.name = "balance",
          .member = &C::balance,
          .allowed = {"work", "count"},
          .doc = "quantity that is equal in all parts; count, as in EPL's automatic pipeline: "
                 "blocks, where four or more divide over the parts, else ops"},
         {.name = "tolerance",
          .member = &C::tolerance,
          .at_least = 0,
          .doc = "a part may exceed its share of the work by this fraction (0.5: up to 1.5 times "
                 "its share) where parts then receive fewer bytes; with layers, a layer of its "
                 "share, 0.5 where it is not given"},
         {.name = "layers",
          .member = &C::layers,
          .otherwise = "parts are cut between blocks",
          .at_least = 1,
          .doc = "parts consist of whole layers: so many clusters of ops, each of which begins "
                 "where a module does, with the fewest bytes between them (Alpa's layer "
                 "construction)"},
         {.name = "part_layers",
          .member = &C::part_layers,
          .otherwise = "equal",
          .doc = "with layers: the number of layers of each part"},
         {.name = "group",
          .member = &C::group,
          .otherwise = "one a stage",
          .at_least = 0,
          .doc = "interleaved: microbatches that run through a chunk together"},
         {.name = "extra",
          .member = &C::extra,
          .at_least = 0,
          .doc = "1f1b: further microbatches in flight on each stage"},
         {.name = "dtype",
          .member = &C::dtype,
          .otherwise = "the values' own types, as on one device",
          .allowed = {"fp16", "bf16", "float16", "bfloat16", "float32", "float64"},
          .doc = "type to which messages between stages are cast"},
         {.name = "costs",
          .member = &C::costs,
          .doc = "{forward, input gradient, weight gradient, message}: times of a stage and of its "
                 "messages, for schedules that are found by a search"}});
    return table;
  }

  void edit(plan::Plan& plan, const PipelineConfig& given, const Config& config,
            const PlanRequest& request) const override {
    const auto& graph = *request.graph;
    plan::Pipeline pipeline;
    pipeline.axis = given.axis;
    const int axis = plan.mesh.find(pipeline.axis);
    if (axis < 0) {
      std::vector<std::string> axes;
      for (const auto& a : plan.mesh.axes) axes.push_back(a.name);
      fail("pipeline_parallel", "axis must be an axis of the mesh ({}), but got \"{}\"{}",
           fmt::join(axes, ", "), pipeline.axis, did_you_mean(pipeline.axis, axes));
    }
    const auto stages = plan.mesh.axes[axis].size;
    pipeline.schedule = given.schedule;
    pipeline.chunks = given.chunks.value_or(default_chunks(given.schedule));
    pipeline.group = given.group;
    pipeline.extra = given.extra;
    set_costs(pipeline, given.costs);
    if (given.dtype) pipeline.dtype = dtype_named(*given.dtype);
    if (stages == 1) {
      plan.decisions.push_back({"pipeline_parallel", fmt::format("axis {} has one rank: there is "
                                                                 "one stage",
                                                                 pipeline.axis)});
      return;
    }
    const auto parts = stages * pipeline.chunks;
    if (config.has("starts")) {
      for (const char* other : {"blocks", "balance", "tolerance", "layers"}) {
        if (!config.has(other)) continue;
        fail("pipeline_parallel", "either starts or {} says where parts begin, but got both",
             other);
      }
      pipeline.starts = given.starts;
      if (std::ssize(pipeline.starts) + 1 != parts) {
        fail(
            "pipeline_parallel",
            "starts must name the first scope of each part after the first, {} for {} stages of {} "
            "part{}, but got {}",
            parts - 1, stages, pipeline.chunks, pipeline.chunks == 1 ? "" : "s",
            pipeline.starts.size());
      }
      require_layers(graph, pipeline);
    } else if (given.layers) {
      for (const char* other : {"blocks", "balance"}) {
        if (!config.has(other)) continue;
        fail("pipeline_parallel", "either layers or {} says where parts begin, but got both",
             other);
      }
      pipeline.starts = cut_layers(graph, {.layers = *given.layers,
                                           .tolerance = given.tolerance.value_or(0.5),
                                           .numbers = given.part_layers,
                                           .parts = parts});
    } else {
      pipeline.starts = cut_blocks(graph, {.patterns = block_patterns(graph, given),
                                           .stages = stages,
                                           .chunks = pipeline.chunks,
                                           .balance = given.balance,
                                           .tolerance = given.tolerance});
    }
    if (config.has("part_layers") && !given.layers) {
      fail("pipeline_parallel", "part_layers requires layers, but they are not given");
    }
    if (config.has("holds")) check_holds(graph, pipeline, config);
    plan.decisions.push_back(
        {"pipeline_parallel",
         fmt::format("the layers are cut into {} parts for {} stages, at {}; microbatches run "
                     "through them by {}",
                     parts, stages, fmt::join(pipeline.starts, ", "), pipeline.schedule)});
    if (pipeline.dtype) {
      plan.decisions.push_back(
          {"pipeline_parallel",
           fmt::format("messages between stages are sent as {}", graph::name_of(*pipeline.dtype))});
    }
    plan.pipeline = std::move(pipeline);
  }

 private:
  static void set_costs(plan::Pipeline& pipeline, const std::vector<double>& costs) {
    bool fits = costs.size() == 3 || costs.size() == 4;
    for (size_t i = 0; fits && i < costs.size(); ++i)
      fits = costs[i] > 0 || (i == 3 && costs[i] == 0);
    if (!fits) {
      fail("pipeline_parallel",
           "costs must be three numbers above 0 and one of at least 0 for messages, but got [{}]",
           fmt::join(costs, ","));
    }
    pipeline.forward = costs[0];
    pipeline.backward = costs[1];
    pipeline.weights = costs[2];
    if (costs.size() == 4) pipeline.transfer = costs[3];
  }

  static void check_holds(const Graph& graph, const plan::Pipeline& pipeline,
                          const Config& config) {
    const auto& holds = config.fields["holds"];
    const auto parts = plan::parts_of(graph, pipeline);
    if (!config.has("starts") || holds.size() != pipeline.starts.size() + 1) {
      fail("pipeline_parallel",
           "holds requires starts and a list for each of their parts, {} lists, but got {} and {}",
           pipeline.starts.size() + 1, holds.size(), config.has("starts") ? "starts" : "no starts");
    }
    for (size_t part = 0; part < holds.size(); ++part) {
      const auto names = texts(holds[part], "pipeline_parallel", "holds");
      if (names.empty()) continue;
      for (const auto& scope : matching_scopes(graph, names, "pipeline_parallel")) {
        const auto in = [&](const auto& node) {
          return node.scope == scope || node.scope.starts_with(scope + ".");
        };
        const auto first = std::find_if(graph.nodes.begin(), graph.nodes.end(), in);
        if (first == graph.nodes.end()) continue;
        const auto at = parts[static_cast<size_t>(first - graph.nodes.begin())];
        if (at == plan::kEveryPart || at == static_cast<int>(part)) continue;
        fail("pipeline_parallel",
             "part {} must hold \"{}\", but that begins in part {}: a part holds the forward pass "
             "from its start to the next ({})",
             part, scope, at, fmt::join(pipeline.starts, ", "));
      }
    }
  }

  // Throws Error where starts leave nothing before the first of them.
  static void require_layers(const Graph& graph, const plan::Pipeline& pipeline) {
    const auto parts = plan::parts_of(graph, pipeline);
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      if (graph.nodes[n].phase != graph::Phase::forward || parts[n] != 0) continue;
      bool layer = graph::flops_of(graph, graph.nodes[n]) > 0;
      graph.nodes[n].each_operand(
          [&](graph::ValueId v) { layer = layer || graph.values[v.index].producer < 0; });
      if (layer) return;
    }
    fail("pipeline_parallel",
         "starts must leave a layer to the first part, but the model begins with \"{}\": name the "
         "first scope of each part after the first",
         pipeline.starts.front());
  }

  static std::vector<std::string> block_patterns(const Graph& graph, const PipelineConfig& given) {
    if (!given.blocks.empty()) return given.blocks.list;
    if (auto row = longest_row(graph); !row.empty()) return {row};
    return innermost_modules(graph);
  }
};

}  // namespace

std::shared_ptr<const Method> pipeline_parallel() { return std::make_shared<PipelineParallel>(); }

}  // namespace perigee::methods
