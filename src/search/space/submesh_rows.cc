// Combinations with unequal submeshes.
#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "base/fail.h"
#include "schedule/description.h"
#include "search/space/space.h"
#include "search/space/submeshes.h"

namespace perigee::search {
namespace {

// A stage with few data ranks has at most so many times the samples per rank of a rectangular mesh.
constexpr int64_t kBeyond = 8;

// Rows as indices into lists of distinct stages and distinct pairs of neighbours, priced once each.
class Spots {
 public:
  struct Spot {
    Submesh submesh;
    int64_t first = 0;
  };
  struct Edge {
    int from = 0, to = 0;  // spots
  };
  struct Row {
    std::vector<int> spots, edges;
    int64_t batch = 1;  // ranks that the samples are split over
  };

  Spots(const std::vector<std::vector<Submesh>>& rows, const cost::Cluster& cluster) {
    for (const auto& submeshes : rows) {
      auto& row = rows_.emplace_back();
      int64_t first = 0;
      for (const auto& submesh : submeshes) {
        const auto place = cluster.devices.size() > 1 ? first : equivalent_rank(cluster, first);
        const std::tuple key{submesh.tensor, submesh.data, place};
        const auto [known, added] = spots_.try_emplace(key, static_cast<int>(list.size()));
        if (added) list.push_back({submesh, place});
        if (!row.spots.empty()) row.edges.push_back(edge(row.spots.back(), known->second));
        row.spots.push_back(known->second);
        row.batch = std::lcm(row.batch, submesh.data);
        first += submesh.ranks();
      }
    }
  }

  const std::vector<Row>& rows() const { return rows_; }
  std::vector<Spot> list;
  std::vector<Edge> edges;

 private:
  int edge(int from, int to) {
    const auto [known, added] = edge_of_.try_emplace({from, to}, static_cast<int>(edges.size()));
    if (added) edges.push_back({from, to});
    return known->second;
  }

  std::vector<Row> rows_;
  std::map<std::tuple<int64_t, int64_t, int64_t>, int> spots_;
  std::map<std::pair<int, int>, int> edge_of_;
};

}  // namespace

Choice HeterogeneousSpace::choice(const One& one) const {
  auto choice = settings[static_cast<size_t>(one.setting)];
  choice.submeshes = rows[static_cast<size_t>(one.row)];
  choice.pipe = std::ssize(choice.submeshes);
  for (const auto& [tensor, data] : choice.submeshes) {
    choice.tensor = std::max(choice.tensor, tensor);
    choice.data = std::max(choice.data, data);
  }
  choice.micro /= choice.batch();
  if (choice.data == 1) choice.zero = 0;
  return choice;
}

bool Space::may_be_heterogeneous() const {
  const auto& pins = request_.pins;
  const bool asked = (pins.sizes && pins.sizes != "none") || !pins.submeshes.empty();
  const bool usual = request_.world <= kFewRanks || cluster_.devices.size() > 1;
  return request_.world > 1 && (asked || (usual && pins.sizes != "none"));
}

std::vector<std::vector<Submesh>> Space::rows(int64_t blocks) const {
  const auto& pins = request_.pins;
  const bool inner = pins.expert.value_or(1) > 1 || pins.context.value_or(1) > 1;
  const auto schedule = pins.schedule.value_or(std::string(schedule::kDefaultSchedule));
  const bool whole = schedule::describe(schedule).warms_up;
  RowOptions options{.ranks = request_.world,
                     .most_stages = blocks,
                     .node = node_,
                     .batch = request_.global_batch,
                     .sizes = pins.sizes.value_or("all"),
                     .pipe = pins.pipe,
                     .tensor = pins.tensor,
                     .data = pins.data};
  if (!pins.starts.empty()) options.pipe = std::ssize(pins.starts) + 1;
  if (!pins.submeshes.empty()) {
    int64_t ranks = 0;
    for (const auto& submesh : pins.submeshes) ranks += submesh.ranks();
    if (ranks != request_.world) {
      fail("auto", "the submeshes that are pinned have {} ranks, but there are {}", ranks,
           request_.world);
    }
    if (!whole || pins.chunks.value_or(1) > 1) {
      fail("auto",
           "stages of unequal submeshes are searched with the schedules {}, of one part, but {} is "
           "pinned",
           schedule::names_where([](const schedule::Description& d) { return d.warms_up; }),
           whole ? "chunks" : schedule);
    }
    options.node = options.ranks;
    const bool fits = std::ssize(pins.submeshes) <= blocks && is_row(pins.submeshes, options);
    if (!fits) return {};
    return {pins.submeshes};
  }
  if (!may_be_heterogeneous() || pins.sizes == "none" || inner || !whole ||
      pins.chunks.value_or(1) > 1)
    return {};
  if (pins.pipe == 1 || request_.world < 2 || blocks < 2) return {};
  return rows_of_submeshes(options);
}

// All but the mesh and the schedule.
std::vector<Choice> Space::settings(int64_t blocks, const BlockRow& row) const {
  const auto& pins = request_.pins;
  std::vector<Choice> made;
  const auto precisions = pins.precision.empty() ? std::vector<std::string>{"none"}
                                                 : pins.precision;
  const auto sequences = pins.sequence ? std::vector<bool>{*pins.sequence}
                                       : std::vector<bool>{false, true};
  for (const auto samples : divisors(request_.global_batch)) {
    const auto microbatches = request_.global_batch / samples;
    // Samples depend on each other: another number of microbatches is another loss.
    if (!splits_ && microbatches > 1 && !pins.micro) continue;
    for (const auto& precision : precisions) {
      for (const bool sequence : sequences) {
        for (const auto& recompute : recompute_options(blocks, row)) {
          for (const int zero : levels()) {
            made.push_back({.micro = samples,
                            .microbatches = microbatches,
                            .sequence = sequence,
                            .zero = zero,
                            .offload = pins.offload.value_or(false),
                            .precision = precision});
            recompute.set(made.back());
          }
        }
      }
    }
  }
  return made;
}

// Whether the row with this setting differs from the row with any other setting.
bool Space::suits(const Choice& setting, const std::vector<Submesh>& row) const {
  const auto& pins = request_.pins;
  const bool splits = std::ranges::any_of(row, [](const auto& s) { return s.tensor > 1; });
  const bool shares = std::ranges::any_of(row, [](const auto& s) { return s.data > 1; });
  if (!splits && setting.sequence != pins.sequence.value_or(false)) return false;
  if (!shares && setting.zero != levels().front()) return false;
  return !(splits && shares && std::ranges::count(pins.forbid, "nd_shardings") > 0);
}

HeterogeneousSpace Space::heterogeneous(LayerTables& tables, const CostModel& model, int64_t blocks,
                                        const std::function<bool()>& stop) {
  const auto& pins = request_.pins;
  HeterogeneousSpace space;
  if (std::ranges::count(pins.forbid, "replicated_parameters") > 0) return space;
  space.rows = rows(blocks);
  if (space.rows.empty() || model.rules().pins_end_without_block()) return space;
  const Spots spots(space.rows, cluster_);
  // Tables are linear in samples, also beyond those that they were made for.
  const auto most = most_samples() == 1 ? 1 : kBeyond * most_samples();
  std::vector<std::string> schedules;
  for (const auto& one : schedule::descriptions()) {
    if (!pins.schedule && one.warms_up && one.dominated_by.empty()) schedules.push_back(one.name);
  }
  if (pins.schedule) schedules = {*pins.schedule};
  std::vector<std::optional<StageRates>> rates(spots.list.size());
  std::vector<double> transfers(spots.edges.size());
  std::vector<const Layers*> layers(spots.list.size());
  std::vector<const StageRates*> stages;
  for (const auto& base : settings(blocks, tables.row())) {
    if (!space.list.empty() && stop()) break;
    for (size_t k = 0; k < spots.list.size(); ++k) {
      const auto& [submesh, first] = spots.list[k];
      rates[k].reset();
      if (base.micro % submesh.data != 0 || base.micro / submesh.data > most) continue;
      auto own = base;  // of one stage: batch() is that of a rectangle
      own.micro = base.micro;
      own = choice_of_stage(own, submesh);
      own.pipe = 2;  // the pipeline has other stages
      layers[k] = tables.on_ranks(own, first, submesh.ranks(), why_not_);
      if (layers[k]) rates[k] = model.bounds().rates(own, *layers[k], first);
    }
    for (size_t e = 0; e < spots.edges.size(); ++e) {
      const auto& [from, to] = spots.edges[e];
      if (!rates[from] || !rates[to]) continue;
      const auto& sender = spots.list[from];
      const Neighbours neighbours{sender.submesh, spots.list[to].submesh, sender.first};
      transfers[e] = model.transfers().between(base, neighbours, *layers[from]).both();
    }
    for (const auto& schedule : schedules) {
      // With one microbatch all schedules are the same.
      if (schedule != schedules.front() && base.microbatches == 1) continue;
      auto setting = base;
      setting.schedule = schedule;
      const auto index = static_cast<int32_t>(space.settings.size());
      space.settings.push_back(setting);
      for (size_t r = 0; r < space.rows.size(); ++r) {
        const auto& row = spots.rows()[r];
        const auto micro = base.micro / row.batch;
        if (base.micro % row.batch != 0 || samples_ % micro != 0) continue;
        if (pins.micro && *pins.micro != micro) continue;
        if (!suits(setting, space.rows[r])) continue;
        if (!schedule_exists(schedule, static_cast<int>(row.spots.size()),
                             static_cast<int>(setting.microbatches), 1)) {
          continue;
        }
        stages.clear();
        for (const int k : row.spots) {
          if (rates[k]) stages.push_back(&*rates[k]);
        }
        if (stages.size() != row.spots.size()) continue;
        double transfer = 0;
        for (const int e : row.edges) transfer += transfers[e];
        space.list.push_back({model.bounds().heterogeneous(setting, stages, transfer), index,
                              static_cast<int32_t>(r)});
      }
    }
  }
  return space;
}

}  // namespace perigee::search
