#include "search/stages/stage_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/fail.h"
#include "base/text/bytes.h"
#include "mesh/mesh.h"
#include "solve/solve.h"

namespace perigee::search {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "perigee.stages/1";

// The numbers of a row by their names in the file.
struct Column {
  const char* name;
  double StageRow::*member;
};
constexpr Column kColumns[] = {{"cost", &StageRow::cost},
                               {"peak", &StageRow::peak},
                               {"in", &StageRow::in},
                               {"out", &StageRow::out},
                               {"temporary", &StageRow::temporary},
                               {"available", &StageRow::available},
                               {"receive", &StageRow::receive}};

template <class T>
T read(const json& object, const char* key, const std::string& file) {
  const auto found = object.find(key);
  if (found == object.end()) fail("stages", "{}: \"{}\" is missing", file, key);
  try {
    return found->get<T>();
  } catch (const json::exception&) {
    fail("stages", "{}: \"{}\" has another type: {}", file, key, found->dump());
  }
}

StageRules read_rules(const json& all, const std::string& file) {
  StageRules rules{.storage = read<int64_t>(all, "storage", file),
                   .recomputed = read<bool>(all, "recomputed", file),
                   .forbid = read<std::vector<std::string>>(all, "forbid", file),
                   .individual = read<bool>(all, "individual", file),
                   .imbalance = {}};
  if (all.contains("imbalance")) rules.imbalance = read<double>(all, "imbalance", file);
  return rules;
}

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

std::string print(const StageTable& table) {
  json views = json::array(), rows = json::array();
  for (const auto& view : table.views) {
    views.push_back({{"hosts", view.hosts},
                     {"devices", view.devices},
                     {"data", view.data},
                     {"tensor", view.tensor}});
  }
  for (const auto& row : table.rows) {
    json one = {{"first", row.first},
                {"last", row.last},
                {"submesh", row.view},
                {"max_successors", row.max_successors}};
    for (const auto& column : kColumns) one[column.name] = row.*column.member;
    rows.push_back(std::move(one));
  }
  json rules = {{"storage", table.rules.storage},
                {"recomputed", table.rules.recomputed},
                {"forbid", table.rules.forbid},
                {"individual", table.rules.individual}};
  if (table.rules.imbalance) rules["imbalance"] = *table.rules.imbalance;
  const json all = {{"format", kFormat},
                    {"graph", table.graph_hash},
                    {"cluster", table.cluster},
                    {"devices", table.devices},
                    {"microbatches", table.microbatches},
                    {"layers", table.layers},
                    {"choose", table.choose},
                    {"measured", table.measured},
                    {"rules", std::move(rules)},
                    {"submeshes", std::move(views)},
                    {"rows", std::move(rows)},
                    {"chosen", table.chosen}};
  return all.dump(1) + "\n";
}

StageTable parse_table(std::string_view text, const std::string& file) {
  const auto all = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!all.is_object() || all.value("format", "") != kFormat) {
    fail("stages", "{} must be a table of stages (\"format\": \"{}\"), but is none", file, kFormat);
  }
  StageTable table{.graph_hash = read<std::string>(all, "graph", file),
                   .cluster = read<std::string>(all, "cluster", file),
                   .devices = read<int64_t>(all, "devices", file),
                   .microbatches = read<int64_t>(all, "microbatches", file),
                   .layers = read<std::vector<std::string>>(all, "layers", file),
                   .choose = read<std::vector<std::string>>(all, "choose", file),
                   .measured = read<bool>(all, "measured", file),
                   .rules = read_rules(read<json>(all, "rules", file), file),
                   .views = {},
                   .rows = {},
                   .chosen = read<std::vector<int>>(all, "chosen", file)};
  for (const auto& view : read<json>(all, "submeshes", file)) {
    table.views.push_back({read<int64_t>(view, "hosts", file), read<int64_t>(view, "devices", file),
                           read<int64_t>(view, "data", file), read<int64_t>(view, "tensor", file)});
  }
  for (const auto& one : read<json>(all, "rows", file)) {
    StageRow row{.first = read<int>(one, "first", file),
                 .last = read<int>(one, "last", file),
                 .view = read<int>(one, "submesh", file),
                 .max_successors = read<int64_t>(one, "max_successors", file)};
    for (const auto& column : kColumns) row.*column.member = read<double>(one, column.name, file);
    const bool fits = row.first >= 0 && row.first <= row.last && row.last < table.layer_count() &&
                      row.view >= 0 && row.view < std::ssize(table.views);
    if (!fits) {
      fail("stages", "{}: row {} must have layers below {} and a submesh below {}, but has {}",
           file, table.rows.size(), table.layer_count(), table.views.size(), one.dump());
    }
    table.rows.push_back(row);
  }
  for (const int row : table.chosen) {
    if (row >= 0 && row < std::ssize(table.rows)) continue;
    fail("stages", "{}: \"chosen\" must list rows below {}, but has {}", file, table.rows.size(),
         row);
  }
  return table;
}

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
                 const std::string& schedule) {
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
  int64_t per_host = 1;
  for (const auto& view : table.views) per_host = std::max(per_host, view.devices);
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
    if (auto order = order_of(stages, per_host); !order.empty()) mesh["order"] = std::move(order);
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
