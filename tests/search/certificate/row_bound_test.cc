// Lower bounds of heterogeneous stages against every cut of the blocks, timed section by section.
#include <fmt/format.h>
#include <rapidcheck.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "schedule/description.h"
#include "search/model/pipeline/row_time.h"
#include "tests/search/certificate/draws.h"
#include "tests/search/certificate/whole_space.h"

using namespace perigee;
using search::all_cuts;
using search::coin;
using search::kRounding;
using search::one_of;
using search::pick;
using search::RowStage;
using search::StageRates;

namespace {

// Seconds of a microbatch's two passes through a layer: of compute, and of transfers on the units'
// stream, which overlap with it.
struct LayerTimes {
  double forward = 0, backward = 0, forward_gathers = 0, backward_gathers = 0;
};

struct Stage {
  LayerTimes ends, block;  // `ends`: of the prologue or the epilogue
  double recomputed = 0;   // of a block's backward pass
  double tail = 0;         // of its transfers, after the backward pass
  double send_seconds = 0, return_seconds = 0;
};

struct Row {
  std::vector<Stage> stages;
  search::Choice choice;
  int blocks = 0;
};

// Returns one of the schedules whose heterogeneous stages are searched.
std::string random_schedule() {
  std::vector<std::string> names;
  for (const auto& one : schedule::descriptions()) {
    if (one.warms_up) names.push_back(one.name);
  }
  return one_of(names);
}

Row random_row() {
  Row row;
  row.blocks = pick(2, 7);
  row.stages.resize(static_cast<size_t>(pick(2, std::min(4, row.blocks))));
  row.choice.pipe = std::ssize(row.stages);
  row.choice.schedule = random_schedule();
  row.choice.microbatches = one_of<int64_t>({1, 1, 2, 3, 7, 20, 100});
  const bool gathers = coin(), sends = coin();
  const auto layer = [&] {
    LayerTimes times{.forward = pick(1, 100) / 100.0, .backward = pick(1, 200) / 100.0};
    if (!gathers) return times;
    times.forward_gathers = pick(0, 150) / 100.0;
    times.backward_gathers = pick(0, 300) / 100.0;
    return times;
  };
  for (auto& stage : row.stages) {
    stage.block = layer();
    if (coin()) stage.recomputed = stage.block.backward * pick(0, 100) / 100;
    if (!gathers && coin()) stage.tail = pick(0, 100) / 100.0;
    if (sends) stage.send_seconds = pick(0, 100) / 100.0;
    if (sends) stage.return_seconds = pick(0, 100) / 100.0;
  }
  if (coin()) row.stages.front().ends = layer();
  if (coin()) row.stages.back().ends = layer();
  return row;
}

// Returns the bound of all cuts of the row.
double bound_of(const Row& row) {
  std::vector<StageRates> rates;
  double messages = 0;
  for (const auto& stage : row.stages) {
    auto& made = rates.emplace_back();
    const auto set = [](double* to, const LayerTimes& times) {
      for (size_t way = 0; way < StageRates::kWays; ++way) {
        to[way] = (way % 2 == 0 ? times.forward : times.forward_gathers) +
                  (way / 2 == 0 ? times.backward : times.backward_gathers);
      }
    };
    const bool last = rates.size() == row.stages.size();
    set(rates.size() == 1 ? made.prologue : made.epilogue, stage.ends);
    set(made.block, stage.block);
    made.recomputed = stage.recomputed;
    if (!last) messages += stage.send_seconds + stage.return_seconds;
  }
  std::vector<const StageRates*> stages;
  for (const auto& one : rates) stages.push_back(&one);
  search::Folded folded;
  for (int k = 0; k < row.blocks; ++k) folded.blocks.push_back(fmt::format("blocks.{}", k));
  const auto on = search::cluster(2);
  cost::NoMeasurements none;
  compile::NoTraces traces;
  simulate::OpCosts costs(on, none);
  const compile::StepSpec spec;
  const search::Pins pins;
  search::LayerTables tables(folded, {}, spec, pins, false, costs, traces);
  const search::CostModel model(folded, tables, costs, {{1e15}, "auto", {}, {}});
  return model.bounds().heterogeneous(row.choice, stages, messages);
}

// Returns the seconds of the passes with so many blocks on each stage.
double seconds_of(const Row& row, const std::vector<int>& lengths) {
  std::vector<RowStage> stages;
  for (size_t s = 0; s < lengths.size(); ++s) {
    const auto& [ends, block, recomputed, tail, send_seconds, return_seconds] = row.stages[s];
    const int n = lengths[s];
    stages.push_back({.forward = std::max(ends.forward + n * block.forward,
                                          ends.forward_gathers + n * block.forward_gathers),
                      .backward = std::max(ends.backward + n * block.backward,
                                           ends.backward_gathers + n * block.backward_gathers) +
                                  tail,
                      .recomputed = n * recomputed,
                      .tail = tail,
                      .send_seconds = send_seconds,
                      .return_seconds = return_seconds});
  }
  return search::time_row(row.choice.schedule, stages, row.choice.microbatches).seconds;
}

void log(const Row& row, double bound) {
  RC_LOG() << fmt::format("{}, {} microbatches, {} blocks, bound {}", row.choice.schedule,
                          row.choice.microbatches, row.blocks, bound);
  const auto text = [](const LayerTimes& times) {
    return fmt::format("{} {} {} {}", times.forward, times.backward, times.forward_gathers,
                       times.backward_gathers);
  };
  for (const auto& stage : row.stages) {
    RC_LOG() << fmt::format("\nends {}, block {}, recomputed {}, tail {}, sends {} {}",
                            text(stage.ends), text(stage.block), stage.recomputed, stage.tail,
                            stage.send_seconds, stage.return_seconds);
  }
}

// Fails where a cut is faster than the bound.
void check_cuts(const Row& row, double bound) {
  for (const auto& starts : all_cuts(row.blocks, static_cast<int>(row.stages.size()), 1, 1)) {
    std::vector<int> lengths;
    int begin = 0;
    for (const int start : starts) lengths.push_back(start - std::exchange(begin, start));
    lengths.push_back(row.blocks - begin);
    const double seconds = seconds_of(row, lengths);
    if (bound > seconds * (1 + kRounding)) {
      RC_LOG() << fmt::format("\n{}: {}", fmt::join(lengths, " "), seconds);
    }
    RC_ASSERT(bound <= seconds * (1 + kRounding));
  }
}

void check_row_bounds() {
  const auto row = random_row();
  const double bound = bound_of(row);
  log(row, bound);
  check_cuts(row, bound);
}

// Stages that a cut makes equally slow, on devices of different speeds or, with `equal`, of one.
void check_row_tight() {
  auto row = random_row();
  std::vector<int> lengths;
  const double forward = pick(1, 100) / 100.0, backward = pick(1, 200) / 100.0;
  const bool equal = coin();
  const int even = pick(1, 3);
  for (auto& stage : row.stages) {
    const int length = lengths.emplace_back(equal ? even : pick(1, 3));
    const double share = !equal && stage.ends.forward > 0 ? pick(0, 900) / 1000.0 : 0;
    stage = {.ends = {.forward = share * forward, .backward = share * backward},
             .block = {.forward = (1 - share) * forward / length,
                       .backward = (1 - share) * backward / length},
             .send_seconds = stage.send_seconds,
             .return_seconds = stage.return_seconds};
  }
  row.blocks = std::accumulate(lengths.begin(), lengths.end(), 0);
  const double bound = bound_of(row);
  log(row, bound);
  RC_LOG() << fmt::format("\nequally slow: {}", fmt::join(lengths, " "));
  check_cuts(row, bound);
  // The passes of all microbatches on one stage, or one microbatch's way through all of them.
  const double busy = static_cast<double>(row.choice.microbatches) * (forward + backward);
  row.choice.microbatches = 1;
  const double way = seconds_of(row, lengths);
  RC_ASSERT(bound >= busy * (1 - kRounding));
  RC_ASSERT(bound <= std::max(busy, way) * (1 + kRounding));
  if (equal) RC_ASSERT(bound >= way * (1 - kRounding));
}

}  // namespace

TEST_CASE("no cut into heterogeneous stages takes less than their bound") {
  CHECK(rc::check("bounds of heterogeneous stages", check_row_bounds));
}

TEST_CASE("the bound of equally slow heterogeneous stages is the time of their passes") {
  CHECK(rc::check("tight bounds of heterogeneous stages", check_row_tight));
}
