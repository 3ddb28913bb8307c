// auto_sharding: shardings of every op over axes of the mesh, storage in parts, recomputation and
// offload, chosen together by the exact solver so that no rank needs more memory than it may.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/match.h"
#include "methods/method.h"
#include "methods/texts.h"
#include "methods/unit_options.h"
#include "shard/fit.h"
#include "shard/planned.h"

namespace perigee::methods {
namespace {

const std::vector<std::string> kChoices = {"storage", "recompute", "offload"};
const std::vector<std::string> kPrecisions = {"none", "amp_native", "half"};

// Limits that are tried so that the compiled programs need as much as they may.
constexpr int kTries = 8;
constexpr double kNear = 0.003;   // of the memory: limits that are not told apart
constexpr double kAbout = 1.001;  // of the least that is counted, which is rounded
constexpr double kAll = 0.9;      // of a limit: what is chosen below it does not depend on it

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
  shard::Fitted fitted;
  shard::PlannedShardings placed;
  std::optional<double> peak;  // bytes, by the compiled programs
  std::string precision = {};  // of those that may be chosen
};

std::string size_text(double bytes) {
  return bytes < 1e10 ? fmt::format("{:.4g} MB", bytes / 1e6)
                      : fmt::format("{:.4g} GB", bytes / 1e9);
}

class AutoSharding : public Method {
 public:
  std::string_view name() const override { return "auto_sharding"; }
  std::string_view doc() const override {
    return "Has the exact solver choose, all together, how each op is sharded over axes of the "
           "mesh, and by block whether parameters are stored in parts, the forward pass runs again "
           "and activations lie on the host, and if asked to the precision, so that a step costs "
           "least and no rank needs more memory than it may. Stands behind all other methods.";
  }
  const std::vector<Field>& fields() const override {
    static const std::vector<Field> fields = {
        {"axis", "any",
         "the axis, or a list of axes, over which ops are sharded; default all of the kind "
         "`tensor`"},
        {"memory", "any",
         "what a rank may use: bytes, a text as \"40GB\", or \"device\" (default): what the "
         "devices have; the compiled programs need no more"},
        {"choose", "any",
         "what may be chosen beside shardings, of storage (parameters, gradients and optimizer "
         "state in parts over zero or data, as zero1, zero2 and fsdp have them), recompute and "
         "offload (of activations); default all of them that no other method of the strategy says"},
        {"precision", "list",
         "what may be chosen of `none`, `amp_native` and `half`, in bf16, which change numbers; "
         "default what the strategy has"},
        {"smallest", "integer", "parameters of fewer bytes are not split; default 0"}};
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    const auto wanted = read(plan, config, request);
    auto fixed = plan;
    fit_batch(fixed, request);
    const bool settled = request.samples == 0 || graph_batch(fixed, request) == request.samples;
    plan.microbatches = fixed.microbatches;
    std::optional<Made> best;
    double least = std::numeric_limits<double>::infinity();
    for (const auto& precision : wanted.precisions) {
      auto start = plan;
      set_precision(start, precision, config, request);
      auto made = choose(start, config, wanted, request, settled, least);
      if (!made || (best && best->fitted.cost <= made->fitted.cost)) continue;
      best = std::move(made);
      best->precision = precision;
    }
    if (!best) refuse(wanted, least);
    plan = std::move(best->plan);
    plan.decisions.push_back({std::string(name()), sentence(*best, wanted)});
  }

 private:
  // Prices in the unit of the solver: bytes moved over the slowest of the axes.
  static void set_prices(shard::FitOptions& options, const Rates& rates, const Wanted& wanted) {
    double link = std::numeric_limits<double>::infinity();
    for (const auto& axis : wanted.axes) link = std::min(link, rates.links.at(axis));
    options.assignment.prices = {.per_flop = link / rates.flops, .per_byte = link / rates.bytes};
    options.host_byte = link / rates.host;
    if (!wanted.storage.empty()) options.part_byte = link / rates.links.at(wanted.storage);
  }

  // What plans are made from.
  struct Context {
    const shard::Fitting& fitting;
    const plan::Plan& plan;
    const Config& config;
    const Wanted& wanted;
    const Request& request;
  };

  // "": as the plan has it.
  static void set_precision(plan::Plan& plan, const std::string& precision, const Config& config,
                            const Request& request) {
    if (precision.empty() || precision == "none") return;
    const auto strategy = from_json(
        Json::array({Json::array({precision, Json{{"dtype", "bf16"}}})}), "auto_sharding");
    auto [method, given] = strategy.methods.front();
    given.place = config.place;
    method->apply(plan, given, request);
  }

  // Returns what is cheapest in the plan's precision, nothing where all of it needs more memory.
  // `least`: the bytes of the plan that needs the least, of this one and those before.
  std::optional<Made> choose(const plan::Plan& plan, const Config& config, const Wanted& wanted,
                             const Request& request, bool settled, double& least) const {
    shard::FitOptions options;
    options.assignment.smallest = config.fields.value("smallest", int64_t{0});
    options.microbatches = static_cast<double>(plan.microbatches);
    options.state_share = request.state_share;
    options.parts =
        wanted.storage.empty() ? 1 : static_cast<double>(plan.mesh.size_of(wanted.storage));
    if (request.rates) set_prices(options, request.rates(*request.graph, plan), wanted);
    options.store = wanted.chooses("storage");
    options.again = wanted.chooses("recompute");
    options.offload = wanted.chooses("offload");
    options.trains = [&](const graph::Input& input) {
      return input.trainable && !matches_any(request.frozen, input.name);
    };
    const auto graph =
        request.as_computed ? request.as_computed(*request.graph, plan) : *request.graph;
    const shard::Fitting fitting(graph, plan, wanted.positions, options);
    const Context context{fitting, plan, config, wanted, request};
    // The plan is made again where the graph is of other samples than it asks for.
    return settled && wanted.memory > 0 ? fit(context, least) : edit(context, {});
  }

  Wanted read(const plan::Plan& plan, const Config& config, const Request& request) const {
    Wanted wanted;
    wanted.axes = axes_of(config, name(), "axis", mesh::axes_of_kind(plan.mesh, "tensor"));
    wanted.positions = shard::find_axes(plan.mesh, wanted.axes, name());
    const auto batch = mesh::split_axes(plan.batch_axes);
    for (const auto& axis : wanted.axes) {
      if (std::find(batch.begin(), batch.end(), axis) == batch.end()) continue;
      fail(name(), "an axis splits the batch or ops, but {} splits the batch", axis);
    }
    if (plan.pipeline.cuts() || plan.mesh.is_ragged() || !plan.copy_axes.empty()) {
      fail(name(),
           "{}: leave it out, or use tensor_parallel with planned = true and checkpoint "
           "with memory in the place of auto_sharding",
           plan.copy_axes.empty() ? "ops of one stage are chosen, but the plan has a pipeline"
                                  : "one model is planned, but ranks train copies of it");
    }
    wanted.memory = static_cast<double>(
        memory_of(config.fields.value("memory", Json("device")), plan, request, name()));
    read_choices(wanted, plan, config);
    read_precisions(wanted, plan, config);
    wanted.storage = plan.mesh.size_of("zero") > 1 ? "zero" : "data";
    if (plan.mesh.size_of(wanted.storage) == 1) wanted.storage.clear();
    return wanted;
  }

  void read_choices(Wanted& wanted, const plan::Plan& plan, const Config& config) const {
    const auto said = [&](const std::string& what) {
      if (what == "storage") return !plan.units.empty();
      return !plan.recompute.regions.empty() || !plan.offload.activations.empty();
    };
    if (!config.fields.contains("choose")) {
      for (const auto& what : kChoices) {
        if (!said(what)) wanted.choose.push_back(what);
      }
      return;
    }
    wanted.choose = texts(config.fields["choose"], name(), "choose");
    for (const auto& what : wanted.choose) {
      if (std::find(kChoices.begin(), kChoices.end(), what) == kChoices.end()) {
        fail(name(), "choose has any of {}, but got \"{}\"{}", fmt::join(kChoices, ", "), what,
             did_you_mean(what, kChoices));
      }
      if (!said(what)) continue;
      fail(name(),
           "{} is chosen here or said by another method, but {} there already: leave that method, "
           "or {} in choose, out",
           what,
           what == "storage" ? "parameters are in parts"
                             : "blocks run again, or leave activations on the host,",
           what);
    }
  }

  void read_precisions(Wanted& wanted, const plan::Plan& plan, const Config& config) const {
    wanted.precisions = {""};
    if (!config.fields.contains("precision")) return;
    wanted.precisions = texts(config.fields["precision"], name(), "precision");
    if (wanted.precisions.empty())
      fail(name(), "precision has one of {} at least, but got none", fmt::join(kPrecisions, ", "));
    for (const auto& what : wanted.precisions) {
      if (std::find(kPrecisions.begin(), kPrecisions.end(), what) != kPrecisions.end()) continue;
      fail(name(), "precision has any of {}, but got \"{}\"{}", fmt::join(kPrecisions, ", "), what,
           did_you_mean(what, kPrecisions));
    }
    if (!plan.precision.dtype) return;
    fail(name(),
         "the precision is chosen here or said by another method, but the plan computes in {}: "
         "leave that method, or precision, out",
         graph::name_of(*plan.precision.dtype));
  }

  // Returns nothing where no choice is within the limit.
  std::optional<Made> edit(const Context& context, std::optional<double> limit) const {
    auto fitted = context.fitting.fit(limit);
    if (!fitted) return {};
    Made made{.plan = context.plan};
    made.placed = shard::place_lying(made.plan, *context.request.graph, context.wanted.positions,
                                     fitted->lying);
    for (int level : {1, 2, 3}) add_storage(made.plan, *fitted, level, context);
    for (const auto& block : fitted->blocks) {
      if (block.again) made.plan.recompute.regions.push_back({block.scope});
      if (block.offload) made.plan.offload.activations.push_back(block.scope);
    }
    made.fitted = std::move(*fitted);
    return made;
  }

  void add_storage(plan::Plan& plan, const shard::Fitted& fitted, int level,
                   const Context& context) const {
    auto match = Json::array(), others = Json::array();
    for (const auto& block : fitted.blocks) {
      if (block.level == level && !block.scope.empty()) match.push_back(block.scope);
    }
    bool any = false;
    for (const auto& [parameter, block] : fitted.stored_with) {
      const bool own = fitted.blocks[block].level == level;
      any = any || own;
      if (!own) others.push_back(parameter);
    }
    if (!any) return;
    Config units{.fields = {{"axis", context.wanted.storage}, {"ignored", others}},
                 .place = context.config.place};
    if (level == 3 && !match.empty()) units.fields["match"] = match;
    add_units(plan, units, context.request, *this, level);
  }

  // Returns the cheapest plan whose compiled programs keep to the memory, if any. What they need
  // beside what is counted is learnt from the plans before it; limits of the count at which plans
  // fit, and at which they do not, come nearer to each other.
  std::optional<Made> fit(const Context& context, double& least) const {
    const double memory = context.wanted.memory;
    std::optional<Made> best;
    double fits = 0, breaks = std::numeric_limits<double>::infinity(), limit = memory;
    bool at_least = false;
    std::map<std::string, double> peaks;  // by the plan's hash: other limits may come to the same
    for (int tries = 0; tries < kTries && breaks - fits > kNear * memory; ++tries) {
      auto made = edit(context, limit);
      if (!made) {
        if (best || std::exchange(at_least, true)) break;
        // The count may be too high: the least by it is compiled, too.
        limit = context.fitting.least_memory() * kAbout;
        continue;
      }
      if (!context.request.peak_bytes) return std::move(*made);
      const double counted = made->fitted.memory;
      const auto [known, added] = peaks.try_emplace(plan::hash(made->plan));
      if (added) known->second = context.request.peak_bytes(*context.request.graph, made->plan);
      const double peak = known->second;
      made->peak = peak;
      least = std::min(least, peak);
      if (peak <= memory) {
        // With any higher limit the same is chosen.
        const bool all = counted < kAll * limit && limit < breaks;
        fits = std::max(fits, limit);
        if (!best || made->fitted.cost <= best->fitted.cost) best = std::move(made);
        if (all && !std::isfinite(breaks)) break;
      } else {
        breaks = std::min(breaks, counted);
      }
      limit = counted + memory - peak;
      if (limit <= fits || limit >= breaks) limit = (fits + std::min(breaks, 2 * fits)) / 2;
    }
    if (!std::isfinite(least)) least = context.fitting.least_memory();
    return best;
  }

  [[noreturn]] void refuse(const Wanted& wanted, double least) const {
    throw Error(
        Status::infeasible, name(),
        fmt::format("no rank may need more than {}, but the least that was found needs {}: give "
                    "more ranks or smaller microbatches{}",
                    size_text(wanted.memory), size_text(least),
                    wanted.choose.size() < kChoices.size()
                        ? ", or let it choose storage, recompute and offload"
                        : ""));
  }

  static std::string sentence(const Made& made, const Wanted& wanted) {
    int blocks = 0, again = 0, offload = 0;
    std::map<int, int> levels;
    for (const auto& block : made.fitted.blocks) {
      ++levels[block.level];
      if (block.scope.empty()) continue;
      ++blocks;
      again += block.again;
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
    if (again > 0) parts.push_back(fmt::format("{} of {} run again", again, blocks));
    if (offload > 0) {
      parts.push_back(fmt::format("activations of {} of {} lie on the host", offload, blocks));
    }
    if (wanted.precisions.size() > 1) {
      parts.push_back(
          fmt::format("of {} it takes {}", fmt::join(wanted.precisions, ", "), made.precision));
    }
    const auto& fitted = made.fitted;
    const double gap = 1 - fitted.bound / fitted.cost;
    return fmt::format(
        "{}; a microbatch costs a rank as much as moving {:.4g} bytes, {}{}",
        fmt::join(parts, ", "), fitted.cost,
        gap > 1e-9 ? fmt::format("and no other choice of the blocks' {:.2g} % less", 100 * gap)
                   : "and no other choice of the blocks' less",
        made.peak ? fmt::format("; a rank needs {} of {}", size_text(*made.peak),
                                size_text(wanted.memory))
                  : std::string());
  }
};

}  // namespace

std::shared_ptr<const Method> auto_sharding() { return std::make_shared<AutoSharding>(); }

}  // namespace perigee::methods
