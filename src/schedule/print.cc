#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "schedule/schedule.h"

namespace perigee {
namespace {

constexpr size_t kMostColumns = 4000;

char letter(PipelineKind kind) {
  return kind == PipelineKind::forward ? 'F' : kind == PipelineKind::weight_grad ? 'W' : 'B';
}

// Returns the op's text in the time line.
std::string label(const PipelineOp& op, int chunks) {
  if (chunks > 2) return fmt::format("{}{}.{}", letter(op.kind), op.microbatch, op.chunk);
  const char name = letter(op.kind);
  return fmt::format("{}{}", op.chunk == 0 ? name : static_cast<char>(name - 'A' + 'a'),
                     op.microbatch);
}

// Returns the columns per unit of time with which every label fits and the line has
// at most kMostColumns.
double columns_per_unit(const Schedule& schedule) {
  double scale = 0;
  for (int s = 0; s < schedule.stages; ++s) {
    const auto& order = schedule.orders[s];
    for (size_t i = 0; i + 1 < order.size(); ++i) {
      const double room = schedule.start[s][i + 1] - schedule.start[s][i];
      if (room > 0) scale = std::max(scale, (label(order[i], schedule.chunks).size() + 1) / room);
    }
  }
  if (schedule.makespan <= 0) return 1;
  return std::min(scale, kMostColumns / schedule.makespan);
}

std::string row(const Schedule& schedule, int stage, double scale) {
  std::string line;
  const auto& order = schedule.orders[stage];
  for (size_t i = 0; i < order.size(); ++i) {
    const auto column = static_cast<size_t>(std::llround(schedule.start[stage][i] * scale));
    if (line.size() < column) line.resize(column, ' ');
    if (line.size() > column) line.resize(column);
    line += label(order[i], schedule.chunks);
  }
  return line;
}

}  // namespace

std::string to_text(const PipelineOp& op) {
  return fmt::format("{}{}.{}", letter(op.kind), op.microbatch, op.chunk);
}

std::string to_json(const Schedule& schedule) {
  nlohmann::ordered_json json;
  json["format"] = "perigee.schedule/1";
  json["name"] = schedule.name;
  json["stages"] = schedule.stages;
  json["microbatches"] = schedule.microbatches;
  json["chunks"] = schedule.chunks;
  auto& orders = json["orders"] = nlohmann::ordered_json::array();
  for (const auto& order : schedule.orders) {
    auto& names = orders.emplace_back(nlohmann::ordered_json::array());
    for (const auto& op : order) names.push_back(to_text(op));
  }
  json["start"] = schedule.start;
  json["makespan"] = schedule.makespan;
  json["span"] = schedule.span;
  json["idle"] = schedule.idle;
  json["peak_in_flight"] = schedule.peak_in_flight;
  json["parts"] = schedule.parts;
  json["bubble_ratio"] = schedule.bubble_ratio;
  return json.dump() + "\n";
}

std::string to_text(const Schedule& schedule) {
  const double scale = columns_per_unit(schedule);
  std::string text = fmt::format("{}: {} stages, {} microbatches, {} chunk{} per stage\n\n",
                                 schedule.name, schedule.stages, schedule.microbatches,
                                 schedule.chunks, schedule.chunks == 1 ? "" : "s");
  const size_t width = fmt::format("{}", schedule.stages - 1).size();
  for (int s = 0; s < schedule.stages; ++s) {
    text += fmt::format("stage {:>{}} |{}\n", s, width, row(schedule, s, scale));
  }
  text += fmt::format(
      "\nF forward, B backward (input gradient where W follows), W weight gradient{}\n",
      schedule.chunks == 2 ? "; small letters: chunk 1" : "");
  text += fmt::format("{:>5} {:>12} {:>12} {:>14}  parts\n", "stage", "span", "idle",
                      "peak in flight");
  for (int s = 0; s < schedule.stages; ++s) {
    text += fmt::format("{:>5} {:>12.6g} {:>12.6g} {:>14.6g}  {}\n", s, schedule.span[s],
                        schedule.idle[s], schedule.peak_in_flight[s],
                        fmt::join(schedule.parts[s], " "));
  }
  text += fmt::format(
      "makespan {:.6g}, longest span {:.6g}, bubble ratio {:.4f} (1 - busy / makespan)\n",
      schedule.makespan, *std::max_element(schedule.span.begin(), schedule.span.end()),
      schedule.bubble_ratio);
  return text;
}

}  // namespace perigee
