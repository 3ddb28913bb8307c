#include "search/stages/make_stage_table.h"

#include <algorithm>
#include <limits>

#include "base/fail.h"
#include "base/text/match.h"
#include "graph/flops.h"
#include "methods/parallel/layer_cuts.h"
#include "methods/parallel/planned_stages.h"
#include "shard/solver/submesh_planner.h"

namespace perigee::search {
namespace {

class TableMaker {
 public:
  TableMaker(const methods::PlanRequest& request, const StageTableOptions& options)
      : request_(request), options_(options), graph_(as_computed(request, options)) {
    table_.graph_hash = graph::structural_hash(*request.graph);
    table_.cluster = options.cluster;
    table_.devices = request.world;
    table_.microbatches = options.microbatches;
    table_.layers = options.layers;
    table_.choose = options.choose;
    table_.measured = options.measured;
    table_.rules = options.rules;
    table_.views = options.views;
    plan::Pipeline pipeline;
    pipeline.axis = "pipe";
    pipeline.starts = options.layers;
    layer_of_ = methods::parts_of_nodes(graph_, pipeline);
    bytes_ = methods::bytes_between_layers(graph_, layer_of_, table_.layer_count());
    work_.resize(table_.layer_count());
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const double flops = graph::flops_of(graph_, graph_.nodes[n]);
      work_[layer_of_[n]] += flops;
      all_work_ += flops;
    }
  }

  StageTable make() {
    for (int view = 0; view < std::ssize(table_.views); ++view) add_view(view);
    return std::move(table_);
  }

 private:
  // Returns the graph with the types that its values have in the stages' precision.
  static graph::Graph as_computed(const methods::PlanRequest& request,
                                  const StageTableOptions& options) {
    plan::Plan plan;
    plan.precision = options.precision;
    return request.as_computed ? request.as_computed(*request.graph, plan) : *request.graph;
  }

  // Seconds of a unit of the solver's costs, and of a byte that another stage sends.
  struct Scales {
    double seconds = 1, receive = 0;
  };

  plan::Plan plan_of(const SubmeshView& view) const {
    plan::Plan plan;
    plan.graph_hash = table_.graph_hash;
    plan.mesh.axes = {{"tensor", view.tensor}, {"data", view.data}};
    if (view.ranks() < table_.devices) {
      plan.mesh.axes.push_back({"pipe", table_.devices / view.ranks()});
    }
    plan.microbatches = table_.microbatches;
    plan.forbidden = table_.rules.forbid;
    plan.precision = options_.precision;
    return plan;
  }

  // Returns whether the rules allow so much work on a submesh.
  bool balanced(double work, const SubmeshView& view) const {
    if (!table_.rules.imbalance) return true;
    const double share = static_cast<double>(view.ranks()) / static_cast<double>(table_.devices);
    return work <= (1 + *table_.rules.imbalance) * (1 + 1e-9) * share * all_work_;
  }

  bool chooses(const std::string& what) const {
    return std::ranges::count(options_.choose, what) > 0;
  }

  // Sets the prices of the options, in bytes moved over the slowest planned axis.
  Scales set_prices(shard::BlockPlanOptions& options, const plan::Plan& plan,
                    const SubmeshView& view) const {
    if (!request_.rates) return {};
    const auto rates = request_.rates(*request_.graph, plan);
    const double link = view.tensor > 1 ? rates.links.at("tensor") : rates.bytes;
    options.assignment.prices = {.per_flop = link / rates.flops, .per_byte = link / rates.bytes};
    options.host_byte = link / rates.host;
    options.storage_byte = link / rates.links.at("data");
    const auto pipe = rates.links.find("pipe");
    // Activations arrive in the forward pass, gradients in the backward pass.
    return {.seconds = 1 / link, .receive = pipe == rates.links.end() ? 0 : 2 / pipe->second};
  }

  void add_view(int index) {
    const auto& view = table_.views[index];
    const auto plan = plan_of(view);
    shard::BlockPlanOptions options;
    options.microbatches = static_cast<double>(table_.microbatches);
    options.state_share = request_.state_share;
    if (view.data > 1) options.storage_axis = "data";
    options.store = chooses("storage");
    options.recompute = chooses("recompute");
    options.offload = chooses("offload");
    if (table_.rules.storage > 0) options.storage_level = static_cast<int>(table_.rules.storage);
    options.recompute_all = table_.rules.recomputed;
    options.trains = [this](const graph::Input& input) {
      return input.trainable && !matches_any(request_.frozen, input.name);
    };
    options.stages = layer_of_;
    const auto scales = set_prices(options, plan, view);
    auto own = plan;
    own.mesh.axes.resize(2);
    const shard::SubmeshPlanner planner(graph_, own, {0}, options);
    const double available = request_.device_bytes ? request_.device_bytes(view.ranks())
                                                   : std::numeric_limits<double>::max();
    const int layers = table_.layer_count();
    for (int first = 0; first < layers; ++first) {
      double work = 0;
      for (int last = first; last < (options_.one_layer ? first + 1 : layers); ++last) {
        work += work_[last];
        if (!balanced(work, view)) break;
        StageRow row{.first = first, .last = last, .view = index, .available = available};
        row.in = bytes_.in[first][last];
        row.out = bytes_.out[first][last];
        row.receive = row.in / static_cast<double>(view.data) * scales.receive;
        add_rows(planner, row, scales);
      }
    }
  }

  // Returns the cheapest choice for a range within its memory: of the range as one, or of each of
  // its layers by itself.
  std::optional<shard::StageChoice> choice_of(const shard::SubmeshPlanner& planner,
                                              const StageRow& range, double in_flight) const {
    if (!table_.rules.individual || range.first == range.last) {
      return planner.fit({range.first, range.last, in_flight}, range.available, {});
    }
    shard::StageChoice sum;
    for (int layer = range.first; layer <= range.last; ++layer) {
      const auto own = planner.fit({layer, layer, in_flight}, range.available, {});
      if (!own) return {};
      sum.cost += own->cost;
      sum.memory += own->memory - own->transient;
      sum.transient = std::max(sum.transient, own->transient);
    }
    sum.memory += sum.transient;
    if (sum.memory > range.available) return {};
    return sum;
  }

  // Adds a row for each cost of the range, from the fewest microbatches in flight.
  void add_rows(const shard::SubmeshPlanner& planner, const StageRow& range, const Scales& scales) {
    const int64_t most = std::min<int64_t>(
        {table_.layer_count() - range.last, table_.microbatches, table_.devices});
    std::optional<StageRow> row;
    for (int64_t in_flight = 1; in_flight <= most; ++in_flight) {
      const auto choice = choice_of(planner, range, static_cast<double>(in_flight));
      if (!choice) break;
      const double cost = choice->cost * scales.seconds;
      if (row && cost > row->cost * (1 + 1e-12)) {
        table_.rows.push_back(*row);
        row.reset();
      }
      if (!row) {
        row = range;
        row->cost = cost;
        row->peak = choice->memory;
        row->temporary = choice->transient;
      }
      // As many microbatches are in flight as stages follow, and one.
      row->max_successors = in_flight < table_.microbatches
                                ? in_flight - 1
                                : static_cast<int64_t>(table_.layer_count());
    }
    if (row) table_.rows.push_back(*row);
  }

  const methods::PlanRequest& request_;
  const StageTableOptions& options_;
  const graph::Graph graph_;
  StageTable table_;
  std::vector<int> layer_of_;  // by node
  methods::LayerBytes bytes_;
  std::vector<double> work_;  // floating-point operations, by layer
  double all_work_ = 0;
};

}  // namespace

StageTable make_stage_table(const methods::PlanRequest& request, const StageTableOptions& options) {
  auto table = TableMaker(request, options).make();
  if (table.rows.empty()) {
    throw Error(
        Status::infeasible, "stages",
        fmt::format("no layer fits a rank's memory on any of {} submeshes{}: ask for more "
                    "layers, smaller microbatches, or let storage and recompute be chosen",
                    table.views.size(), options.rules.imbalance ? " within the imbalance" : ""));
  }
  return table;
}

}  // namespace perigee::search
