// Lower bounds of random layers on random meshes against every cut of the blocks.
#include <fmt/format.h>
#include <rapidcheck.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>

#include "base/infinity.h"
#include "schedule/description.h"
#include "schedule/schedule.h"
#include "search/cut/heterogeneous_cut.h"
#include "tests/search/certificate/draws.h"
#include "tests/search/certificate/whole_space.h"

using namespace perigee;
using search::Choice;
using search::coin;
using search::CostModel;
using search::Estimate;
using search::kRounding;
using search::Layer;
using search::Layers;
using search::one_of;
using search::pick;
using search::Starts;

namespace {

// Returns 1/1000 to 1000/1000 of `most`, or 0.
double draw(double most) { return most * pick(0, 1000) / 1000; }

// A layer of up to `seconds` seconds, with parameters in up to two units.
Layer random_layer(double seconds) {
  Layer layer{.forward = draw(seconds)};
  layer.gradient = draw(seconds);
  layer.backward = layer.gradient + draw(seconds);
  layer.tail = draw(layer.gradient);
  layer.forward_communication = draw(layer.forward);
  layer.communication = layer.forward_communication + draw(layer.backward - layer.gradient);
  layer.step = draw(seconds / 4);
  layer.norm = draw(layer.step);
  layer.saved = draw(1e6);
  layer.operands = draw(layer.saved);
  for (int units = pick(0, 2); units > 0; --units) {
    auto& flat = layer.flats.emplace_back();
    flat.gathered = flat.weights = flat.gradients = 1e3 + draw(1e7);
    flat.largest = draw(flat.gradients);
    flat.pieces = pick(1, 3);
    flat.in_forward = flat.in_backward = true;
    if (units == 2) flat.axes.insert("tensor");
    layer.weights += flat.weights;
    layer.gradients += flat.gradients;
    layer.states += 2 * flat.weights;
  }
  return layer;
}

// A choice of homogeneous stages, its layers, and a cluster of its ranks.
struct Case {
  search::Folded folded;
  cost::Cluster on;
  Choice choice;
  Layers layers;
  cost::NoMeasurements none;
  compile::NoTraces traces;
  compile::StepSpec spec;
  search::Pins pins;

  double limit = 1e15;  // bytes of a rank

  // Returns use(model), of the model in which the later parts begin there; without
  // `starts`, anywhere.
  template <class F>
  auto with(const Starts& starts, F use) {
    simulate::OpCosts costs(on, none);
    search::LayerTables tables(folded, {}, spec, pins, false, costs, traces);
    const CostModel model(folded, tables, costs, {{limit}, "auto", starts, {}});
    return use(model);
  }
  // Returns the estimate where the later parts begin there; without `starts`, of the best cut.
  std::optional<Estimate> estimate(const Starts& starts) {
    return with(starts, [&](const CostModel& model) {
      double needed = 0;
      return model.estimate(choice, layers, needed);
    });
  }
  // Of the space: by the passes of all schedules.
  double bound() {
    return with({}, [&](const CostModel& model) {
      return model.lower_bound(choice, layers, model.bounds().whole(choice, layers));
    });
  }
  std::vector<Starts> cuts() {
    return with({},
                [&](const CostModel& model) { return search::all_cuts(choice, model, layers); });
  }
};

// Cuts whose time the search bounds: of few cuts it looks at each.
enum class Cuts : uint8_t { few, many };

// `many`: of stages of two parts, which exchange gradients or weights within a microbatch, so that
// the sum of the stages' passes depends on the cut.
Case random_case(Cuts cuts = Cuts::few) {
  const bool many = cuts == Cuts::many;
  Case made;
  const int blocks = many ? pick(10, 12) : pick(1, 8);
  for (int k = 0; k < blocks; ++k) made.folded.blocks.push_back(fmt::format("blocks.{}", k));
  if (coin()) made.folded.epilogue = "head";
  auto& choice = made.choice;
  choice.tensor = one_of<int64_t>({1, 2});
  choice.data = one_of<int64_t>({1, 2, 4});
  choice.pipe = !many && coin() ? pick(1, std::min(blocks, 4)) : std::min(blocks, 2);
  choice.microbatches = pick(1, 24);
  if (many) choice.data = one_of<int64_t>({2, 4});
  choice.zero = many ? pick(2, 3) : choice.data > 1 ? pick(0, 3) : 0;
  auto& layers = made.layers;
  const double unit = std::pow(10.0, pick(-5, -1));
  if (coin()) layers.prologue = random_layer(2 * unit);
  if (coin()) layers.epilogue = random_layer(2 * unit);
  layers.block = random_layer(unit);
  layers.crossing = draw(1e7);
  layers.entering = draw(layers.crossing);
  layers.working = draw(1e7);
  if (coin()) layers.repeated = draw(layers.block.backward - layers.block.gradient);
  layers.tied = !layers.prologue.flats.empty() && !layers.epilogue.flats.empty() && coin();
  if (layers.tied) {
    auto& late = layers.prologue.flats.front();
    late.read_late = draw(late.gathered);
  }
  made.on = search::cluster(choice.tensor * choice.data * choice.pipe);
  if (!made.on.links.empty()) made.on.links.front().bandwidth = std::pow(10.0, 7 + draw(4));
  if (choice.pipe == 1) return made;
  std::vector<std::pair<std::string, int64_t>> schedules;
  made.with({}, [&](const CostModel& model) {
    for (const auto& name : schedule_names()) {
      for (int64_t chunks = many ? 2 : 1; chunks <= (many ? 2 : 3); ++chunks) {
        const auto most = chunks == 1 ? blocks : model.rules().most_parts(layers);
        if (default_chunks(name) == 1 ? chunks > 1 : chunks == 1) continue;
        if (choice.pipe * chunks <= most &&
            schedule_exists(name, int(choice.pipe), int(choice.microbatches), int(chunks))) {
          schedules.emplace_back(name, chunks);
        }
      }
    }
    return 0;
  });
  std::tie(choice.schedule, choice.chunks) = one_of(schedules);
  return made;
}

// Prints the case where a property fails.
void log(const Case& made, double bound) {
  const auto text = [](const Layer& layer) {
    return fmt::format("forward {} backward {} gradient {} tail {} step {} norm {} flats {}",
                       layer.forward, layer.backward, layer.gradient, layer.tail, layer.step,
                       layer.norm, layer.flats.size());
  };
  RC_LOG() << search::to_string(made.choice) << ", " << made.folded.blocks.size()
           << " blocks, bound " << fmt::format("{}", bound) << "\nprologue "
           << text(made.layers.prologue) << "\nblock " << text(made.layers.block) << " repeated "
           << made.layers.repeated << "\nepilogue " << text(made.layers.epilogue) << "\ncrossing "
           << made.layers.crossing << " entering " << made.layers.entering << " tied "
           << made.layers.tied;
}

void check_bounds() {
  auto made = random_case();
  const double bound = made.bound();
  log(made, bound);
  double least = kInfinity;
  const auto cuts = made.cuts();
  for (const auto& starts : cuts) {
    const auto estimate = made.estimate(starts);
    RC_ASSERT(estimate.has_value());
    RC_LOG() << fmt::format("\n{}: {}, of it {} after the passes", fmt::join(starts, " "),
                            estimate->seconds, estimate->epilogue_seconds);
    RC_ASSERT(bound <= estimate->seconds * (1 + kRounding));
    least = std::min(least, estimate->seconds);
  }
  const auto best = made.estimate({});
  RC_ASSERT(best.has_value());
  RC_LOG() << fmt::format("\nbest {}: {}, bound {}, of passes {}", fmt::join(best->cuts, " "),
                          best->seconds, best->lower_bound, best->passes_bound);
  RC_ASSERT(best->lower_bound <= least * (1 + kRounding));
  RC_ASSERT(best->seconds >= least * (1 - kRounding));
  // Of many cuts the search looks at some.
  if (std::ssize(cuts) <= search::kFewCuts) RC_ASSERT(best->seconds <= least * (1 + kRounding));
  RC_TAG(made.choice.schedule);
}

// Only the bound: of many cuts the search looks at some.
void check_bounds_of_many() {
  auto made = random_case(Cuts::many);
  log(made, made.bound());
  double least = kInfinity;
  const auto cuts = made.cuts();
  RC_ASSERT(std::ssize(cuts) > search::kFewCuts);
  for (const auto& starts : cuts) {
    const auto estimate = made.estimate(starts);
    RC_ASSERT(estimate.has_value());
    least = std::min(least, estimate->seconds);
  }
  const auto best = made.estimate({});
  RC_ASSERT(best.has_value());
  RC_LOG() << fmt::format("\nbest {}: {}, bound {}, least {}", fmt::join(best->cuts, " "),
                          best->seconds, best->lower_bound, least);
  RC_ASSERT(best->lower_bound <= least * (1 + kRounding));
}

void check_tight() {
  auto made = random_case();
  auto& [folded, on, choice, layers, none, traces, spec, pins, limit] = made;
  // Stages have the same layers, and exchange nothing within a microbatch.
  layers.prologue = layers.epilogue = {};
  layers.tied = false;
  const auto parts = choice.pipe * choice.chunks;
  folded.epilogue.clear();
  folded.blocks.resize(static_cast<size_t>(parts * pick(1, 3)), "blocks.x");
  choice.zero = std::min(choice.zero, 1);
  const double bound = made.bound();
  log(made, bound);
  Starts even;
  for (int64_t part = 1; part < parts; ++part) {
    even.push_back(static_cast<int>(part * std::ssize(folded.blocks) / parts));
  }
  const auto estimate = made.estimate(even);
  RC_ASSERT(estimate.has_value());
  const double passes = estimate->seconds - estimate->epilogue_seconds;
  RC_LOG() << fmt::format("\nestimate {}, epilogue {}", estimate->seconds,
                          estimate->epilogue_seconds);
  RC_ASSERT(bound <= passes * (1 + kRounding));
  // The orders of these are searched and may take longer, or have waits for messages that the
  // passes do not hide.
  const auto& described = schedule::describe(choice.schedule);
  if (described.exceeds_bound || (described.in_rounds && layers.crossing > 0)) return;
  RC_ASSERT(bound >= passes * (1 - kRounding));
}

}  // namespace

TEST_CASE(
    "no cut of random layers takes less than the bound, and the best cut is the best of all") {
  CHECK(rc::check("bounds", check_bounds));
}

TEST_CASE("the bound of stages of two parts holds for every one of many cuts") {
  CHECK(rc::check("bounds of many cuts", check_bounds_of_many));
}

TEST_CASE(
    "the bound of homogeneous stages is their time without what follows the last microbatch") {
  CHECK(rc::check("tight bounds", check_tight));
}
