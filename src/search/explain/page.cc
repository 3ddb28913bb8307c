#include "search/explain/page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/text/bytes.h"
#include "compile/draft/collective.h"
#include "compile/stages/stage_inputs.h"
#include "mesh/report.h"
#include "plan/pipeline.h"
#include "schedule/schedule.h"
#include "search/explain/html.h"
#include "search/explain/time_line.h"
#include "search/stages/describe_stages.h"
#include "simulate/memory_kinds.h"
#include "simulate/op_table.h"
#include "simulate/report.h"
#include "simulate/utilisation.h"

namespace perigee::search {
namespace {

using html::Part;
using html::Table;

constexpr size_t kRowsOfOps = 30;

const char* const kColors[] = {"#5b8fc9", "#e0885c", "#8cb964", "#b7b7b7",
                               "#c98fc4", "#5fb3a8", "#e3c25c", "#d5dae2"};

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

// Returns the name with "*" for components that are numbers.
std::string without_numbers(const std::string& name) {
  std::string text;
  for (size_t begin = 0; begin <= name.size();) {
    const auto end = std::min(name.find_first_of("./", begin), name.size());
    const auto part = name.substr(begin, end - begin);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    text += number ? "*" : part;
    if (end < name.size()) text += name[end];
    begin = end + 1;
  }
  return text;
}

class Page {
 public:
  explicit Page(const PageContent& content) : c_(content) {
    for (size_t i = 0; i < c_.programs.ranks.size(); ++i) {
      program_of_[c_.programs.ranks[i]] = &c_.programs.of(i);
    }
  }

  std::string text() {
    return html::begin(c_.title + ": plan") + head() + mesh() + stages() + memory() + schedule() +
           layers() + ops() + decisions() + stage_table() + others() + html::end();
  }

 private:
  static std::string section(const char* title, const std::string& body) {
    return fmt::format("<h2>{}</h2>\n<div class=\"scroll\">\n{}</div>\n", title, body);
  }
  static std::string paragraph(const std::string& text, const char* kind = nullptr) {
    return fmt::format("<p{}>{}</p>\n", kind ? fmt::format(" class=\"{}\"", kind) : "",
                       html::escape(text));
  }

  std::string head() const {
    const auto& cluster = c_.costs.cluster();
    const auto used = simulate::utilisation(c_.graph, c_.plan, cluster, c_.simulation.step_seconds);
    int64_t parameters = 0;
    for (const auto& input : c_.graph.inputs) {
      if (input.kind != graph::Input::Kind::parameter) continue;
      parameters += c_.graph.type(input.value).numel();
    }
    double most = 0;
    bool exact = true;
    for (const auto& program : c_.programs.programs) {
      most = std::max(most, static_cast<double>(program.peak_bytes));
      exact = exact && program.exact_memory;
    }
    auto text = fmt::format("<h1>{}</h1>\n", html::escape(c_.title));
    text += paragraph(fmt::format("{} parameters on {} ranks of {}",
                                  simulate::count_text(static_cast<double>(parameters)),
                                  c_.plan.mesh.size(), cluster.name));
    text += paragraph(fmt::format(
        "a step takes {} by the simulator ({}), "
        "{} FLOPs, model FLOPs utilisation {}{}; bubble ratio {:.3f}; a rank takes up to {}{}",
        simulate::seconds_text(c_.simulation.step_seconds),
        simulate::measured_text(c_.simulation.measured_share), simulate::count_text(used.flops),
        percent(used.mfu), cluster.assumed ? " of peaks that are assumed" : "",
        c_.simulation.bubble_ratio, bytes_text(most), exact ? "" : " (estimate)"));
    if (c_.found) text += paragraph("bound by " + c_.found->bound_by);
    return text;
  }

  std::string mesh() const {
    Table table{
        {"axis", "ranks", "neighbours are", "a group spans"}, {false, true, false, false}, {}};
    const auto& cluster = c_.costs.cluster();
    const auto first = c_.plan.mesh.order.empty() ? 0 : c_.plan.mesh.order.front();
    if (c_.plan.mesh.is_ragged()) return submeshes();
    int64_t stride = 1;
    for (const auto& axis : c_.plan.mesh.axes) {
      const std::vector<std::string> names{axis.name};
      const auto group = mesh::group_of(c_.plan.mesh, names, first);
      const int level = cost::level_of(cluster, group);
      table.rows.push_back({axis.name, std::to_string(axis.size), fmt::format("{} apart", stride),
                            level < 0 ? "one rank" : cluster.links[level].level});
      stride *= axis.size;
    }
    return section("Mesh", html::to_html(table));
  }

  std::string submeshes() const {
    const auto& mesh = c_.plan.mesh;
    Table table{{"stage", "axes", "ranks", "they span"}, {true, false, false, false}, {}};
    for (int64_t stage = 0; stage < std::ssize(mesh.stages); ++stage) {
      const auto ranks = mesh::ranks_of_stage(mesh, stage);
      const int level = cost::level_of(c_.costs.cluster(), ranks);
      table.rows.push_back({std::to_string(stage), mesh::sizes_of_stage(mesh, stage),
                            fmt::format("{}", fmt::join(ranks, ", ")),
                            level < 0 ? "one rank" : c_.costs.cluster().links[level].level});
    }
    return section("Submeshes", html::to_html(table));
  }

  int64_t stage_of(int64_t rank) const {
    const auto& axis = c_.plan.pipeline.axis;
    if (axis.empty()) return 0;
    return mesh::coordinates(c_.plan.mesh, rank)[static_cast<size_t>(c_.plan.mesh.find(axis))];
  }

  std::string stages() const {
    Table table{{"stage", "ranks alike", "begins at", "computes", "waits", "streams", "memory"},
                {true, true, false, true, true, false, true},
                {}};
    const auto& pipeline = c_.plan.pipeline;
    std::vector<int> owner;
    if (pipeline.cuts()) {
      owner = stage_of_parts(pipeline.schedule,
                             static_cast<int>(c_.plan.mesh.size_of(pipeline.axis)),
                             static_cast<int>(pipeline.chunks));
    }
    for (const auto& rank : c_.simulation.ranks) {
      const auto& program = *program_of_.at(rank.rank);
      const auto stage = stage_of(rank.rank);
      std::vector<std::string> starts;
      if (!pipeline.cuts() || (!owner.empty() && owner[0] == stage)) starts.push_back("the input");
      for (size_t k = 0; k < pipeline.starts.size(); ++k) {
        if (k + 1 < owner.size() && owner[k + 1] == stage) starts.push_back(pipeline.starts[k]);
      }
      table.rows.push_back(
          {std::to_string(stage), std::to_string(rank.replicas),
           fmt::format("{}", fmt::join(starts, ", ")), simulate::seconds_text(rank.compute),
           simulate::seconds_text(rank.waiting), simulate::busy_text(rank, program),
           bytes_text(static_cast<double>(program.peak_bytes))});
    }
    std::string note;
    if (pipeline.cuts()) {
      note = paragraph(fmt::format("schedule {}, {} microbatches a step", pipeline.schedule,
                                   c_.plan.microbatches),
                       "note");
    } else if (c_.plan.microbatches > 1) {
      note = paragraph(fmt::format("{} microbatches a step", c_.plan.microbatches), "note");
    }
    return section("Stages", note + html::to_html(table));
  }

  std::string memory() const {
    double most = 0;
    for (const auto& rank : c_.simulation.ranks) {
      most = std::max(most, static_cast<double>(program_of_.at(rank.rank)->peak_bytes));
    }
    Table table{{"stage"}, {true}, {}};
    for (const auto& name : simulate::memory_kinds()) {
      table.head.push_back(name);
      table.numbers.push_back(true);
    }
    std::string bars;
    std::vector<Part> legend;
    // Ranks of a stage differ in their collectives only; their memory is shown once.
    std::set<const compile::Program*> shown;
    for (const auto& rank : c_.simulation.ranks) {
      const auto* program = program_of_.at(rank.rank);
      if (!shown.insert(program).second) continue;
      std::vector<Part> parts;
      std::vector<std::string> cells{std::to_string(stage_of(rank.rank))};
      size_t color = 0;
      for (const auto& kind : simulate::memory_by_kind(*program)) {
        parts.push_back({fmt::format("{} {}", kind.name, bytes_text(kind.bytes)), kind.bytes,
                         kColors[color++]});
        cells.push_back(kind.bytes > 0 ? bytes_text(kind.bytes) : "");
      }
      bars += fmt::format("<div class=\"note\">stage {}</div>", stage_of(rank.rank)) +
              html::bar(parts, most);
      table.rows.push_back(std::move(cells));
    }
    size_t color = 0;
    for (const auto& name : simulate::memory_kinds()) legend.push_back({name, 0, kColors[color++]});
    return section("Memory of a rank by kind", html::legend(legend) + bars + html::to_html(table));
  }

  std::string schedule() const {
    const auto& simulation = c_.simulation;
    auto body = time_line_legend(simulation, c_.programs) +
                time_line(simulation, c_.programs, {.until = simulation.step_seconds});
    const double part = first_part(simulation);
    if (part < simulation.step_seconds) {
      body += paragraph(fmt::format("its first {}, by microbatch:", simulate::seconds_text(part)),
                        "note") +
              time_line(simulation, c_.programs, {.until = part});
    }
    return section("Time line of a step", body);
  }

  // The stages that use a value, by its id.
  std::map<int32_t, std::set<int>> stages_of_inputs() const {
    std::map<int32_t, std::set<int>> stages;
    const auto& pipeline = c_.plan.pipeline;
    if (!pipeline.cuts()) return stages;
    const auto owner = stage_of_parts(pipeline.schedule,
                                      static_cast<int>(c_.plan.mesh.size_of(pipeline.axis)),
                                      static_cast<int>(pipeline.chunks));
    // Every part has its own transpose of a weight: the parts that use the transpose count.
    const auto parts = plan::parts_of(c_.graph, pipeline);
    std::map<int32_t, std::set<int32_t>> roots;
    for (size_t n = 0; n < c_.graph.nodes.size(); ++n) {
      std::set<int32_t> read;
      c_.graph.nodes[n].each_operand([&](graph::ValueId v) {
        const auto found = roots.find(v.index);
        if (found == roots.end()) {
          read.insert(v.index);
        } else {
          read.insert(found->second.begin(), found->second.end());
        }
      });
      if (parts[n] == plan::kEveryPart) {
        for (auto result : c_.graph.nodes[n].outputs) {
          if (result.defined()) roots[result.index] = read;
        }
        continue;
      }
      for (const auto v : read) stages[v].insert(owner[static_cast<size_t>(parts[n])]);
    }
    return stages;
  }

  std::string layers() const {
    std::map<std::string, const plan::Unit*> unit_of;
    const compile::StageInputs held(c_.graph, c_.plan);
    for (const auto& unit : c_.plan.units) {
      for (const auto& name : unit.parameters) {
        if (!held.stays_whole(name)) unit_of[name] = &unit;
      }
    }
    const auto stages = stages_of_inputs();
    struct Row {
      std::vector<std::string> cells;  // name, shape, placement, in parts
      int64_t count = 0;
      std::set<int> stages;
    };
    std::vector<Row> rows;
    std::map<std::vector<std::string>, size_t> known;
    const auto add = [&](std::vector<std::string> cells, const std::set<int>* at) {
      const auto [found, added] = known.try_emplace(cells, rows.size());
      if (added) rows.push_back({std::move(cells)});
      auto& row = rows[found->second];
      ++row.count;
      if (at) row.stages.insert(at->begin(), at->end());
    };
    const auto placement_of = [&](const std::string& name) {
      const auto found = c_.plan.placements.find(name);
      std::string text;
      for (size_t a = 0; a < c_.plan.mesh.axes.size(); ++a) {
        if (found == c_.plan.placements.end() || a >= found->second.size()) continue;
        const auto& placement = found->second[a];
        if (placement.is_replicate() || placement.is_open()) continue;
        text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", c_.plan.mesh.axes[a].name,
                            mesh::to_string(placement));
      }
      return text.empty() ? std::string("whole") : text;
    };
    std::set<std::string> inputs;
    for (const auto& input : c_.graph.inputs) {
      inputs.insert(input.name);
      if (input.kind != graph::Input::Kind::parameter) continue;
      const auto& type = c_.graph.type(input.value);
      const auto unit = unit_of.find(input.name);
      const char* const levels[] = {"", "optimizer state", "optimizer state and gradients",
                                    "optimizer state, gradients and parameters"};
      const auto at = stages.find(input.value.index);
      add({without_numbers(input.name),
           fmt::format("{}[{}]", graph::name_of(type.dtype), fmt::join(type.shape, ", ")),
           placement_of(input.name),
           unit == unit_of.end()
               ? ""
               : fmt::format("{} over {}", levels[unit->second->level], unit->second->axes.text())},
          at == stages.end() ? nullptr : &at->second);
    }
    for (const auto& [name, placement] : c_.plan.placements) {
      if (inputs.contains(name)) continue;
      add({without_numbers(name), "", placement_of(name), ""}, nullptr);
    }
    Table table{{"parameter or pinned value", "times", "type", "placement", "in parts", "stages"},
                {false, true, false, false, false, false},
                {}};
    for (const auto& row : rows) {
      std::string at = fmt::format("{}", fmt::join(row.stages, ", "));
      const auto many = static_cast<int>(row.stages.size());
      if (many > 2 && *row.stages.rbegin() - *row.stages.begin() == many - 1) {
        at = fmt::format("{} to {}", *row.stages.begin(), *row.stages.rbegin());
      }
      table.rows.push_back(
          {row.cells[0], std::to_string(row.count), row.cells[1], row.cells[2], row.cells[3], at});
    }
    return section("Placements per layer",
                   paragraph("S and a dim: cut along it; P: partial sums; whole: every rank of the "
                             "stage has all of it; * stands for the number of a block",
                             "note") +
                       html::to_html(table));
  }

  std::string ops() {
    const auto slowest = std::max_element(
        c_.simulation.ranks.begin(), c_.simulation.ranks.end(),
        [](const simulate::RankTime& a, const simulate::RankTime& b) {
          return a.compute < b.compute;
        });
    const auto rows = simulate::op_table(*program_of_.at(slowest->rank), c_.plan.mesh, c_.costs);
    double all = 0, rest = 0;
    for (const auto& row : rows) all += row.seconds;
    Table table{{"op", "stream", "runs", "time", "share", "FLOPs", "bytes", "time is"},
                {false, false, true, true, true, true, true, false},
                {}};
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto& row = rows[i];
      if (i >= kRowsOfOps) {
        rest += row.seconds;
        continue;
      }
      table.rows.push_back(
          {row.name, row.stream, std::to_string(row.runs), simulate::seconds_text(row.seconds),
           all > 0 ? percent(row.seconds / all) : "",
           row.flops > 0 ? simulate::count_text(row.flops) : "", bytes_text(row.bytes),
           row.measured >= row.seconds ? row.seconds > 0 ? "measured" : ""
           : row.measured > 0          ? "measured in part"
                                       : "an estimate"});
    }
    auto body = paragraph(
                    fmt::format("of rank {}, which computes the longest; collectives overlap with "
                                "ops, so that the sum of the times exceeds the step time",
                                slowest->rank),
                    "note") +
                html::to_html(table);
    if (rows.size() > kRowsOfOps) {
      body += paragraph(fmt::format("and {} other ops in {}", rows.size() - kRowsOfOps,
                                    simulate::seconds_text(rest)),
                        "note");
    }
    return section("Costs by op", body);
  }

  std::string decisions() const {
    Table table{{"by", "decision"}, {false, false}, {}};
    for (const auto& decision : c_.plan.decisions) {
      if (c_.stages && decision.by == kStageTable) continue;  // a section of its own
      table.rows.push_back({decision.by, decision.sentence});
    }
    return section("Decisions", html::to_html(table));
  }

  // The stages and submeshes that were considered.
  std::string stage_table() const {
    if (!c_.stages) return "";
    const auto& found = *c_.stages;
    Table table{{"layers", "submesh", "data", "tensor", "cost", "peak", "in", "out", "temporary",
                 "available", "stages after it", "chosen"},
                {false, false, true, true, true, true, true, true, true, true, true, false},
                {}};
    for (size_t r = 0; r < found["rows"].size(); ++r) {
      const auto& row = found["rows"][r];
      const auto& submesh = found["submeshes"][row["submesh"].get<size_t>()];
      const auto count = [](const nlohmann::json& n) { return std::to_string(n.get<int64_t>()); };
      const auto bytes = [&](const char* name) { return bytes_text(row[name].get<double>()); };
      const auto& chosen = found["stages"];
      const auto stage = std::ranges::find(chosen, nlohmann::json(r)) - chosen.begin();
      table.rows.push_back({count(row["first"]) + ".." + count(row["last"]),
                            count(submesh["hosts"]) + " x " + count(submesh["devices"]),
                            count(submesh["data"]), count(submesh["tensor"]),
                            simulate::seconds_text(row["cost"].get<double>()), bytes("peak"),
                            bytes("in"), bytes("out"), bytes("temporary"), bytes("available"),
                            count(row["max_successors"]),
                            stage < std::ssize(chosen) ? "stage " + std::to_string(stage) : ""});
    }
    return section("Stages considered",
                   paragraph("cost: of a microbatch's forward and backward pass; memory with one "
                             "microbatch in flight",
                             "note") +
                       html::to_html(table));
  }

  std::string others() const {
    if (!c_.found) {
      return section("Runners-up", paragraph("the strategy was given; for the strategy auto, this "
                                             "section lists the other candidates",
                                             "note"));
    }
    const auto& best = c_.found->best;
    const auto& parts = best.estimate.parts;
    const double whole = parts.total();
    std::vector<Part> shares = {{"compute", parts.compute, kColors[0]},
                                {"tensor axis", parts.tensor, kColors[1]},
                                {"bubble", parts.bubble, kColors[4]},
                                {"data axis", parts.data, kColors[6]},
                                {"optimizer", parts.optimizer, kColors[5]}};
    auto body = paragraph(fmt::format("of {} combinations, {} were cut into stages; none that was "
                                      "not can take less than {} by the model",
                                      c_.found->combinations, c_.found->looked_at,
                                      simulate::seconds_text(c_.found->lower_bound)),
                          "note") +
                html::legend(shares) + html::bar(shares, whole);
    Table table{{"plan", "time", "by", "to the best", "memory", "why not"},
                {false, true, false, true, true, false},
                {}};
    for (const auto& other : c_.found->others) {
      const double seconds = other.judged ? other.seconds : other.estimate.seconds;
      const double against = other.judged ? best.seconds : best.estimate.seconds;
      const bool winner = other.choice == best.choice;
      table.rows.push_back({to_string(other.choice), simulate::seconds_text(seconds),
                            other.judged ? "the simulator" : "the model",
                            fmt::format("{:+.1f}%", 100 * (seconds / against - 1)),
                            bytes_text(other.judged ? other.peak_bytes : other.estimate.bytes),
                            winner                  ? "taken"
                            : other.refused.empty() ? "slower"
                                                    : other.refused});
    }
    return section("Runners-up", body + html::to_html(table));
  }

  const PageContent& c_;
  std::map<int64_t, const compile::Program*> program_of_;
};

}  // namespace

std::string to_html(const PageContent& content) { return Page(content).text(); }

}  // namespace perigee::search
