#include "search/stages/stage_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/text/bytes.h"
#include "mesh/mesh.h"
#include "solve/solve.h"

namespace perigee::search {
namespace {

using nlohmann::json;

// The ranks of each stage in order, so that a submesh within a host does not span two: stages of
// many devices take theirs first. Empty: 0, 1, 2, ... does.
std::vector<int64_t> order_of(const std::vector<SubmeshView>& stages, int64_t per_host) {
  std::vector<size_t> by_size(stages.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::ranges::stable_sort(
      by_size, [&](size_t a, size_t b) { return stages[a].ranks() > stages[b].ranks(); });
  std::vector<std::vector<int64_t>> ranks(stages.size());
  int64_t all = 0;
  for (const auto& stage : stages) all += stage.ranks();
  std::vector<bool> taken(all);
  for (const size_t s : by_size) {
    const auto count = stages[s].ranks();
    const auto step = count < per_host ? 1 : per_host;
    for (int64_t first = 0; first + count <= all && ranks[s].empty(); first += step) {
      const bool spans = count < per_host && first / per_host != (first + count - 1) / per_host;
      const bool free = std::none_of(taken.begin() + first, taken.begin() + first + count,
                                     [](bool t) { return t; });
      if (spans || !free) continue;
      for (int64_t r = first; r < first + count; ++r) {
        taken[r] = true;
        ranks[s].push_back(r);
      }
    }
    if (ranks[s].empty()) return {};  // sizes that do not tile hosts
  }
  std::vector<int64_t> order;
  for (const auto& own : ranks) order.insert(order.end(), own.begin(), own.end());
  return std::ranges::is_sorted(order) ? std::vector<int64_t>() : order;
}

}  // namespace

std::string to_text(const StageTable& table) {
  std::string text = fmt::format(
      "{:>9}  {:>10}  {:>6}  {:>6}  {:>10}  {:>10}  {:>10}  {:>10}  "
      "{:>10}  {:>10}  {:>5}  {:>6}\n",
      "layers", "submesh", "data", "tensor", "cost", "peak", "in", "out", "temporary", "available",
      "after", "chosen");
  for (size_t r = 0; r < table.rows.size(); ++r) {
    const auto& row = table.rows[r];
    const auto& view = table.views[row.view];
    const auto chosen = std::ranges::find(table.chosen, static_cast<int>(r));
    text += fmt::format(
        "{:>9}  {:>10}  {:>6}  {:>6}  {:>8.4g} s  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {:>5}  "
        "{:>6}\n",
        fmt::format("{}..{}", row.first, row.last),
        fmt::format("{} x {}", view.hosts, view.devices), view.data, view.tensor, row.cost,
        bytes_text(row.peak), bytes_text(row.in), bytes_text(row.out), bytes_text(row.temporary),
        bytes_text(row.available), row.max_successors,
        chosen == table.chosen.end() ? std::string()
                                     : fmt::format("stage {}", chosen - table.chosen.begin()));
  }
  return text;
}

std::optional<StageSequence> best_sequence(const StageTable& table, std::optional<int> view) {
  solve::StagesProblem problem{.layers = table.layer_count(),
                               .devices = table.devices,
                               .microbatches = table.microbatches,
                               .submeshes = {},
                               .candidates = {}};
  for (const auto& each : table.views) problem.submeshes.push_back({each.hosts, each.devices});
  std::vector<int> rows;
  for (size_t r = 0; r < table.rows.size(); ++r) {
    const auto& row = table.rows[r];
    if (view && row.view != *view) continue;
    rows.push_back(static_cast<int>(r));
    problem.candidates.push_back(
        {row.first, row.last, row.view, row.cost + row.receive, row.max_successors});
  }
  if (problem.candidates.empty()) return {};
  const auto result = solve::solve(problem);
  if (result.verdict == solve::Verdict::infeasible) return {};
  StageSequence sequence{.rows = {}, .seconds = result.time, .lower_bound = result.lower_bound};
  for (const int candidate : result.choice) sequence.rows.push_back(rows[candidate]);
  return sequence;
}

json strategy_of(const StageTable& table, const StageSequence& sequence,
                 const std::string& schedule, int64_t devices_per_host) {
  std::vector<SubmeshView> stages;
  auto submeshes = json::array(), starts = json::array();
  for (const int r : sequence.rows) {
    const auto& row = table.rows[r];
    const auto& view = table.views[row.view];
    if (row.first > 0) starts.push_back(table.layers[row.first - 1]);
    stages.push_back(view);
    submeshes.push_back(
        json::array({json::array({"tensor", view.tensor}), json::array({"data", view.data})}));
  }
  auto strategy = json::array();
  const auto count = static_cast<int64_t>(stages.size());
  if (count == 1) {
    json mesh = submeshes[0];
    if (!table.rules.forbid.empty()) {
      mesh = {{"1", mesh[0]}, {"2", mesh[1]}, {"forbid", table.rules.forbid}};
    }
    strategy.push_back(json::array({"parallel_mode", std::move(mesh)}));
  } else {
    json mesh = {{"submeshes", std::move(submeshes)}};
    if (!table.rules.forbid.empty()) mesh["forbid"] = table.rules.forbid;
    if (auto order = order_of(stages, devices_per_host); !order.empty()) {
      mesh["order"] = std::move(order);
    }
    strategy.push_back(json::array({"parallel_mode", std::move(mesh)}));
    json pipeline = {{"starts", std::move(starts)}};
    if (!schedule.empty()) pipeline["schedule"] = schedule;
    strategy.push_back(json::array({"pipeline_parallel", std::move(pipeline)}));
  }
  strategy.push_back(
      json::array({"gradient_accumulation", {{"microbatches", table.microbatches}}}));
  strategy.push_back(json::array({"auto_sharding", {{"choose", table.choose}}}));
  return strategy;
}

}  // namespace perigee::search
