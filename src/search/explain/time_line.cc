#include "search/explain/time_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "search/explain/html.h"
#include "simulate/report.h"

namespace perigee::search {
namespace {

using compile::SectionKind;

constexpr double kLeft = 92, kWidth = 1060, kRow = 22, kHeight = 18;

struct Style {
  const char* name;
  const char* color;
};
constexpr Style kStyles[] = {
    {"forward pass", "#7fb3e6"},         {"backward pass", "#8fcb9b"},
    {"gradients of weights", "#c3a6e0"}, {"forward and backward pass", "#7fc4c4"},
    {"counting labels", "#c9ced6"},      {"optimizer", "#f2b36b"},
    {"copies meet", "#e58f8f"}};

// Returns the index in kStyles of a section.
size_t style_of(const compile::Section& section) {
  switch (section.role.kind) {
    case SectionKind::forward:
      return 0;
    case SectionKind::backward:
      return 1;
    case SectionKind::weights:
      return 2;
    case SectionKind::micro:
      return 3;
    case SectionKind::prologue:
    case SectionKind::prologue_end:
      return 4;
    case SectionKind::refresh:
    case SectionKind::step:
      return 5;
    case SectionKind::average:
      return 6;
  }
  return 4;
}

std::map<int64_t, const compile::Program*> by_rank(const compile::Programs& programs) {
  std::map<int64_t, const compile::Program*> found;
  for (size_t i = 0; i < programs.ranks.size(); ++i) found[programs.ranks[i]] = &programs.of(i);
  return found;
}

}  // namespace

std::string time_line(const simulate::Simulation& simulation, const compile::Programs& programs,
                      const TimeLineOptions& options) {
  const auto found = by_rank(programs);
  const auto rows = std::min(options.most, simulation.runs.size());
  const double height = kRow * static_cast<double>(rows) + 24;
  const double scale = options.until > 0 ? kWidth / options.until : 0;
  auto svg = fmt::format(
      "<svg viewBox=\"0 0 {:.0f} {:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" role=\"img\" "
      "aria-label=\"time line\">\n",
      kLeft + kWidth, height, kLeft + kWidth, height);
  for (size_t row = 0; row < rows; ++row) {
    const auto& rank = simulation.ranks[row];
    const auto& program = *found.at(rank.rank);
    const double top = kRow * static_cast<double>(row);
    svg += fmt::format("<text x=\"0\" y=\"{:.0f}\">rank {}{}</text>\n", top + 13, rank.rank,
                       rank.replicas > 1 ? fmt::format(" +{}", rank.replicas - 1) : "");
    // One path for each colour, so that thousands of runs make a small page.
    std::map<size_t, std::string> paths;
    std::string labels;
    for (const auto& run : simulation.runs[row]) {
      if (run.begin >= options.until) break;
      const auto& section = program.sections[run.section];
      const double x = kLeft + run.begin * scale;
      const double width = (std::min(run.end, options.until) - run.begin) * scale;
      // A narrow gap between adjacent sections.
      const double shown = width > 3 ? width - 0.6 : width;
      paths[style_of(section)] += fmt::format("M{:.2f} {:.0f}h{:.2f}v{:.0f}h-{:.2f}z", x, top,
                                              shown, kHeight, shown);
      if (width > 16 && program.microbatches > 1 && section.role.kind != SectionKind::step) {
        labels += fmt::format("<text x=\"{:.1f}\" y=\"{:.0f}\">{}</text>", x + 2, top + 13,
                              run.microbatch);
      }
    }
    for (const auto& [style, path] : paths) {
      svg += fmt::format("<path fill=\"{}\" d=\"{}\"/>\n", kStyles[style].color, path);
    }
    svg += labels + "\n";
  }
  const double base = kRow * static_cast<double>(rows);
  svg += fmt::format("<path stroke=\"#8a93a3\" fill=\"none\" d=\"M{:.0f} {:.0f}h{:.0f}\"/>\n",
                     kLeft, base + 2, kWidth);
  for (int tick = 0; tick <= 4; ++tick) {
    const double share = tick / 4.0;
    svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"{}\">{}</text>\n",
                       kLeft + kWidth * share, base + 17,
                       tick == 0   ? "start"
                       : tick == 4 ? "end"
                                   : "middle",
                       tick == 0 ? "0" : simulate::seconds_text(options.until * share));
  }
  return svg + "</svg>\n";
}

std::string time_line_legend(const simulate::Simulation& simulation,
                             const compile::Programs& programs) {
  const auto found = by_rank(programs);
  std::map<size_t, html::Part> used;
  for (size_t row = 0; row < simulation.runs.size(); ++row) {
    const auto& program = *found.at(simulation.ranks[row].rank);
    for (const auto& run : simulation.runs[row]) {
      const auto style = style_of(program.sections[run.section]);
      used[style] = {kStyles[style].name, 0, kStyles[style].color};
    }
  }
  std::vector<html::Part> parts;
  for (const auto& [style, part] : used) parts.push_back(part);
  return html::legend(parts);
}

double first_part(const simulate::Simulation& simulation) {
  double until = 0;
  for (const auto& runs : simulation.runs) {
    if (runs.empty()) continue;
    until = std::max(until, runs[std::min<size_t>(6, runs.size() - 1)].end);
  }
  return until < 0.6 * simulation.step_seconds ? until : simulation.step_seconds;
}

}  // namespace perigee::search
