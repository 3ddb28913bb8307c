// auto_sharding: shardings of every op over axes of the mesh, storage in parts, recomputation and
// offload, chosen together by the exact solver so that no rank needs more memory than it may.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/fail.h"
#include "base/text/bytes.h"
#include "base/text/match.h"
#include "methods/data/unit_options.h"
#include "methods/field_table.h"
#include "methods/parallel/open_choices.h"
#include "methods/parallel/planned_stages.h"
#include "methods/texts.h"
#include "shard/solver/block_planner.h"
#include "shard/solver/planned_shardings.h"

namespace perigee::methods {
namespace {

const std::vector<std::string> kPrecisions = {"none", "amp_native", "half"};

// Number of memory limits that are tried, so that the compiled programs use most of the
// memory allowed.
constexpr int kTries = 8;
constexpr double kNear = 0.003;   // share of the memory: closer limits count as equal
constexpr double kAbout = 1.001;  // factor on the least memory counted, for rounding
constexpr double kAll = 0.9;      // share of a limit: a plan that needs less does not depend on it

struct Wanted {
  std::vector<std::string> axes;
  std::vector<int> positions;  // of them in the mesh
  double memory = 0;           // bytes; 0: any
  std::vector<std::string> choose, precisions;
  std::string storage;  // axis over which gradients are averaged; "": none
  bool chooses(const std::string& what) const {
    return std::find(choose.begin(), choose.end(), what) != choose.end();
  }
};

struct Made {
  plan::Plan plan;
  shard::BlockPlan fitted;
  shard::PlannedShardings placed;
  std::optional<double> peak;  // bytes, by the compiled programs
  std::string precision = {};  // of those that may be chosen
};

struct AutoConfig {
  std::optional<mesh::AxisSet> axis;
  Json memory = "device";
  std::optional<Names> choose;
  std::optional<std::vector<std::string>> precision;
  int64_t smallest = 0;
};

class AutoSharding : public MethodWith<AutoConfig> {
 public:
  std::string_view name() const override { return "auto_sharding"; }
  std::string_view doc() const override {
    return "The exact solver chooses together how each op is sharded over axes of the mesh, for "
           "each block whether its parameters are stored in parts, its forward pass is recomputed "
           "and its activations are offloaded to the host, and where asked the precision, so that "
           "a step costs least and no rank exceeds its memory. Applied last.";
  }

 protected:
  const FieldTable<AutoConfig>& table() const override {
    using C = AutoConfig;
    static const FieldTable<C> table(
        {{.name = "axis",
          .member = &C::axis,
          .otherwise = "all of the kind `tensor`",
          .doc = "the axis, or a list of axes, over which ops are sharded"},
         {.name = "memory",
          .member = &C::memory,
          .doc =
              "upper bound on a rank's peak by the compiled programs: bytes, a text as \"40GB\", "
              "or `device`: the memory of the devices"},
         {.name = "choose",
          .member = &C::choose,
          .otherwise = "those that no other method of the strategy sets",
          .allowed = solver_choices(),
          .doc = "choices of the solver besides shardings: storage (parameters, gradients and "
                 "optimizer state in parts over zero or data, as in zero1, zero2 and fsdp), "
                 "recompute, and offload of activations"},
         {.name = "precision",
          .member = &C::precision,
          .otherwise = "the strategy's",
          .allowed = kPrecisions,
          .doc = "precisions to choose from, in bf16; they change numbers"},
         {.name = "smallest",
          .member = &C::smallest,
          .at_least = 0,
          .doc = "parameters of fewer bytes are not split"}});
    return table;
  }

  void edit(plan::Plan& plan, const AutoConfig& given, const Config& config,
            const PlanRequest& request) const override {
    const auto wanted = read(plan, given, request);
    auto fixed = plan;
    fit_batch(fixed, request);
    const bool settled = request.samples == 0 || graph_batch(fixed, request) == request.samples;
    plan.microbatches = fixed.microbatches;
    std::optional<Made> best;
    double least = std::numeric_limits<double>::infinity();
    for (const auto& precision : wanted.precisions) {
      auto start = plan;
      set_precision(start, precision, config, request);
      const Sources sources{.given = given, .config = config, .wanted = wanted, .request = request};
      auto made = choose(start, sources, settled, least);
      if (!made) continue;
      const double steps = static_cast<double>(plan.microbatches);
      if (best && best->fitted.step_cost(steps) <= made->fitted.step_cost(steps)) continue;
      best = std::move(made);
      best->precision = precision;
    }
    if (!best) refuse(wanted, least);
    plan = std::move(best->plan);
    plan.decisions.push_back({std::string(name()), sentence(*best, wanted)});
  }

 private:
  // Prices in the unit of the solver: bytes moved over the slowest of the axes.
  static void set_prices(shard::BlockPlanOptions& options, const DeviceRates& rates,
                         const Wanted& wanted) {
    double link = std::numeric_limits<double>::infinity();
    for (const auto& axis : wanted.axes) link = std::min(link, rates.links.at(axis));
    options.assignment.prices = {.per_flop = link / rates.flops, .per_byte = link / rates.bytes};
    options.host_byte = link / rates.host;
    if (!wanted.storage.empty()) options.storage_byte = link / rates.links.at(wanted.storage);
  }

  // The inputs of every plan that is tried.
  struct Sources {
    const AutoConfig& given;
    const Config& config;
    const Wanted& wanted;
    const PlanRequest& request;
  };

  struct Context : Sources {
    const shard::BlockPlanner& fitting;
    const plan::Plan& plan;
  };

  // "": as the plan has it.
  static void set_precision(plan::Plan& plan, const std::string& precision, const Config& config,
                            const PlanRequest& request) {
    if (precision.empty() || precision == "none") return;
    const auto strategy = from_json(
        Json::array({Json::array({precision, Json{{"dtype", "bf16"}}})}), "auto_sharding");
    auto [method, its_config] = strategy.methods.front();
    its_config.place = config.place;
    method->apply(plan, its_config, request);
  }

  // Returns the cheapest plan in the precision of `plan`, nothing where each needs more memory.
  // `least`: the lowest peak in bytes of the plans tried so far.
  std::optional<Made> choose(const plan::Plan& plan, const Sources& sources, bool settled,
                             double& least) const {
    const auto& wanted = sources.wanted;
    const auto& request = sources.request;
    shard::BlockPlanOptions options;
    options.assignment.smallest = sources.given.smallest;
    options.microbatches = static_cast<double>(plan.microbatches);
    options.state_share = request.state_share;
    options.storage_axis = wanted.storage;
    auto stages = planned_stages(*request.graph, plan);
    options.stages = std::move(stages.of_node);
    options.in_flight = std::move(stages.in_flight);
    if (request.rates) set_prices(options, request.rates(*request.graph, plan), wanted);
    options.store = wanted.chooses("storage");
    options.recompute = wanted.chooses("recompute");
    options.offload = wanted.chooses("offload");
    options.trains = [&](const graph::Input& input) {
      return input.trainable && !matches_any(request.frozen, input.name);
    };
    const auto graph = request.as_computed ? request.as_computed(*request.graph, plan)
                                           : *request.graph;
    const shard::BlockPlanner fitting(graph, plan, wanted.positions, options);
    const Context context{sources, fitting, plan};
    // The caller repeats the plan where the graph was captured at another number of samples than
    // the plan's.
    return settled && wanted.memory > 0 ? fit(context, least) : edit_within(context, {});
  }

  Wanted read(const plan::Plan& plan, const AutoConfig& given, const PlanRequest& request) const {
    Wanted wanted;
    wanted.axes = given.axis ? given.axis->names() : mesh::axes_of_kind(plan.mesh, "tensor");
    wanted.positions = shard::find_axes(plan.mesh, wanted.axes, name());
    for (const auto& axis : wanted.axes) {
      if (!plan.batch_axes.contains(axis)) continue;
      fail(name(), "an axis splits the batch or ops, but {} splits the batch", axis);
    }
    if (!plan.copy_axes.empty()) {
      fail(name(),
           "one model is planned, but ranks train copies of it: leave local_sgd out, or use "
           "tensor_parallel with planned = true and checkpoint with memory in the place of "
           "auto_sharding");
    }
    if (plan.pipeline.cuts() && std::ranges::count(wanted.axes, plan.pipeline.axis) > 0) {
      fail(name(), "an axis has the pipeline's stages or splits ops, but {} has the stages",
           plan.pipeline.axis);
    }
    wanted.memory = static_cast<double>(memory_of(given.memory, plan, request, name()));
    read_choices(wanted, plan, given);
    read_precisions(wanted, plan, given);
    wanted.storage = plan.mesh.size_of("zero") > 1 ? "zero" : "data";
    if (plan.mesh.size_of(wanted.storage) == 1) wanted.storage.clear();
    return wanted;
  }

  void read_choices(Wanted& wanted, const plan::Plan& plan, const AutoConfig& given) const {
    if (!given.choose) {
      for (const auto& what : solver_choices()) {
        if (!is_chosen(plan, what)) wanted.choose.push_back(what);
      }
      return;
    }
    wanted.choose = given.choose->list;
    for (const auto& what : wanted.choose) {
      if (!is_chosen(plan, what)) continue;
      fail(name(),
           "{} is chosen here or set by another method, but {}: leave that method, or {} in "
           "choose, out",
           what,
           what == "storage" ? "another method stores parameters in parts"
                             : "another method recomputes blocks or offloads activations",
           what);
    }
  }

  void read_precisions(Wanted& wanted, const plan::Plan& plan, const AutoConfig& given) const {
    wanted.precisions = {""};
    if (!given.precision) return;
    wanted.precisions = *given.precision;
    if (wanted.precisions.empty()) {
      fail(name(), "precision must list at least one of {}, but the list is empty",
           fmt::join(kPrecisions, ", "));
    }
    if (!plan.precision.dtype) return;
    fail(name(),
         "the precision is chosen here or set by another method, but the plan computes in {}: "
         "leave that method, or precision, out",
         graph::name_of(*plan.precision.dtype));
  }

  // Returns nothing where no choice is within the limit.
  std::optional<Made> edit_within(const Context& context, std::optional<double> limit) const {
    return made_from(context, context.fitting.fit(limit));
  }

  std::optional<Made> made_from(const Context& context,
                                std::optional<shard::BlockPlan> fitted) const {
    if (!fitted) return {};
    Made made{.plan = context.plan};
    made.placed = shard::place_values(made.plan, *context.request.graph, context.wanted.positions,
                                      fitted->placements, fitted->stage_of);
    for (int level : {1, 2, 3}) add_storage(made.plan, *fitted, level, context);
    for (const auto& block : fitted->blocks) {
      if (block.recompute) made.plan.recompute.regions.push_back({block.scope});
      if (block.offload) made.plan.offload.activations.push_back(block.scope);
    }
    made.fitted = std::move(*fitted);
    return made;
  }

  void add_storage(plan::Plan& plan, const shard::BlockPlan& fitted, int level,
                   const Context& context) const {
    std::vector<std::string> match, others;
    for (const auto& block : fitted.blocks) {
      const bool own = block.storage_level == level && !block.scope.empty();
      // A block in which a stage begins is one of two stages.
      if (own && std::ranges::count(match, block.scope) == 0) match.push_back(block.scope);
    }
    bool any = false;
    for (const auto& [parameter, block] : fitted.stored_with) {
      const bool own = fitted.blocks[block].storage_level == level;
      any = any || own;
      if (!own) others.push_back(parameter);
    }
    if (!any) return;
    UnitConfig units;
    units.axis = mesh::AxisSet({context.wanted.storage});
    units.ignored.list = std::move(others);
    if (level == 3) units.match.list = std::move(match);
    add_units(plan, units, context.request, *this, level);
  }

  // Returns the cheapest plan whose compiled programs do not exceed the memory, if any. The
  // solver's estimate is corrected by the compiled peaks of earlier plans: a bisection between
  // the highest limit of the estimate at which a plan fits (`fits`) and the lowest at which
  // none does (`breaks`).
  std::optional<Made> fit(const Context& context, double& least) const {
    const double memory = context.wanted.memory;
    std::optional<Made> best;
    double fits = 0, breaks = std::numeric_limits<double>::infinity(), limit = memory;
    bool at_least = false;
    std::map<std::string, double> peaks;  // by the plan's hash
    for (int tries = 0; tries < kTries && breaks - fits > kNear * memory; ++tries) {
      auto made = edit_within(context, limit);
      if (!made) {
        if (best || std::exchange(at_least, true)) break;
        // The estimate may be too high: the plan with the least estimated memory is compiled, too.
        made = made_from(context, context.fitting.fit_least(kAbout));
        if (!made) break;
        limit = made->fitted.memory;
      }
      if (!context.request.peak_bytes) return std::move(*made);
      const double counted = made->fitted.memory;
      const auto [known, added] = peaks.try_emplace(plan::hash(made->plan));
      if (added) known->second = context.request.peak_bytes(*context.request.graph, made->plan);
      const double peak = known->second;
      made->peak = peak;
      least = std::min(least, peak);
      if (peak <= memory) {
        // Any higher limit gives the same choice.
        const bool all = counted < kAll * limit && limit < breaks;
        fits = std::max(fits, limit);
        const auto steps = static_cast<double>(made->plan.microbatches);
        const bool cheaper = !best ||
                             made->fitted.step_cost(steps) <= best->fitted.step_cost(steps);
        if (cheaper) best = std::move(made);
        if (all && !std::isfinite(breaks)) break;
      } else {
        breaks = std::min(breaks, counted);
      }
      limit = counted + memory - peak;
      if (limit <= fits || limit >= breaks) limit = (fits + std::min(breaks, 2 * fits)) / 2;
    }
    const double bottom = context.fitting.least_memory();
    if (!std::isfinite(least)) least = bottom;
    // Estimates of blocks and stages are off by unequal amounts: a plan that the bisection leaves out
    // may fit.
    const double top = std::max(memory, 2 * bottom);
    for (int k = kTries; context.request.peak_bytes && !best && k > 0; --k) {
      auto made = edit_within(context, bottom + (top - bottom) * k / (kTries + 1));
      if (!made) continue;
      const auto [known, added] = peaks.try_emplace(plan::hash(made->plan));
      if (added) known->second = context.request.peak_bytes(*context.request.graph, made->plan);
      made->peak = known->second;
      least = std::min(least, known->second);
      if (known->second <= memory) best = std::move(made);
    }
    return best;
  }

  [[noreturn]] void refuse(const Wanted& wanted, double least) const {
    throw Error(
        Status::infeasible, name(),
        fmt::format("no rank may need more than {}, but the least that was found needs {}: give "
                    "more ranks or smaller microbatches{}",
                    bytes_text(wanted.memory), bytes_text(least),
                    wanted.choose.size() < solver_choices().size()
                        ? ", or let it choose storage, recompute and offload"
                        : ""));
  }

  static std::string sentence(const Made& made, const Wanted& wanted) {
    int blocks = 0, recomputed = 0, offload = 0;
    std::map<int, int> levels;
    for (const auto& block : made.fitted.blocks) {
      ++levels[block.storage_level];
      if (block.scope.empty()) continue;
      ++blocks;
      recomputed += block.recompute;
      offload += block.offload;
    }
    std::vector<std::string> parts;
    parts.push_back(fmt::format("{} of {} weights are split over {}", made.placed.split.size(),
                                made.placed.split.size() + made.placed.whole.size(),
                                fmt::join(wanted.axes, " and ")));
    constexpr const char* kStored[] = {"", "optimizer state", "optimizer state and gradients",
                                       "all of their parameters"};
    for (const auto& [level, count] : levels) {
      if (level == 0) continue;
      parts.push_back(fmt::format("{} of {} blocks store {} in parts over {}", count,
                                  made.fitted.blocks.size(), kStored[level], wanted.storage));
    }
    if (recomputed > 0) {
      parts.push_back(fmt::format("{} of {} are recomputed", recomputed, blocks));
    }
    if (offload > 0) {
      parts.push_back(fmt::format("activations of {} of {} lie on the host", offload, blocks));
    }
    if (wanted.precisions.size() > 1) {
      parts.push_back(
          fmt::format("of {} it takes {}", fmt::join(wanted.precisions, ", "), made.precision));
    }
    const auto& fitted = made.fitted;
    const double gap = 1 - fitted.bound / fitted.cost;
    return fmt::format("{}; a microbatch costs a rank as much as moving {:.4g} bytes, {}{}",
                       fmt::join(parts, ", "), fitted.cost,
                       gap > 1e-9
                           ? fmt::format("within {:.2g} % of the optimum of the blocks", 100 * gap)
                           : "the optimum of the blocks",
                       made.peak ? fmt::format("; a rank needs {} of {}", bytes_text(*made.peak),
                                               bytes_text(wanted.memory))
                                 : std::string());
  }
};

}  // namespace

std::shared_ptr<const Method> auto_sharding() { return std::make_shared<AutoSharding>(); }

}  // namespace perigee::methods
