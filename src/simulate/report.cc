#include "simulate/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "base/text/bytes.h"

namespace perigee::simulate {
namespace {

std::map<int64_t, const compile::Program*> by_rank(const compile::Programs& programs) {
  std::map<int64_t, const compile::Program*> found;
  for (size_t i = 0; i < programs.ranks.size(); ++i) found[programs.ranks[i]] = &programs.of(i);
  return found;
}

}  // namespace

std::vector<std::pair<std::string, double>> busy_by_kind(const RankTime& rank,
                                                         const compile::Program& program) {
  std::map<std::string, double> busy;
  for (size_t s = 1; s < rank.streams.size(); ++s) {
    const auto& stream = program.streams[s];
    const bool staged = stream.kind == compile::Stream::Kind::stages ||
                        stream.kind == compile::Stream::Kind::message;
    busy[staged ? stream.axes.text() : stream.name()] += rank.streams[s];
  }
  std::vector<std::pair<std::string, double>> list(busy.begin(), busy.end());
  std::ranges::stable_sort(list, std::greater(), [](const auto& one) { return one.second; });
  return list;
}

std::string busy_text(const RankTime& rank, const compile::Program& program) {
  std::string text;
  for (const auto& [kind, seconds] : busy_by_kind(rank, program)) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", kind, seconds_text(seconds));
  }
  return text;
}

std::string seconds_text(double seconds) {
  if (seconds >= 999.5) return fmt::format("{:.0f} s", seconds);
  if (seconds >= 1) return fmt::format("{:.3g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} us", seconds * 1e6);
}

std::string count_text(double count) {
  const char* const units[] = {"", " k", " M", " G", " T", " P", " E"};
  int unit = 0;
  while (count >= 999.5 && unit < 6) {
    count /= 1000;
    ++unit;
  }
  return fmt::format("{:.3g}{}", count, units[unit]);
}

std::string measured_text(double share) {
  if (share <= 0) return "all of it estimated";
  if (share > 1 - 1e-9) return "all of it measured";
  if (share > 0.995) return "more than 99% of it measured";
  if (share < 0.005) return "less than 1% of it measured";
  return fmt::format("{:.0f}% of it measured, the rest estimated", 100 * share);
}

std::string to_text(const Simulation& simulation, const compile::Programs& programs,
                    const cost::Cluster& cluster, const Utilisation& utilisation) {
  const auto found = by_rank(programs);
  auto text = fmt::format("a step on {} takes {} ({}), MFU {:.1f}%{}, bubble ratio {:.3f}\n",
                          cluster.name, seconds_text(simulation.step_seconds),
                          measured_text(simulation.measured_share), 100 * utilisation.mfu,
                          cluster.assumed ? " of peaks that are assumed" : "",
                          simulation.bubble_ratio);
  for (const auto& rank : simulation.ranks) {
    const auto& program = *found.at(rank.rank);
    text += fmt::format(
        "rank {}{}: computes {}, waits {}", rank.rank,
        rank.replicas > 1 ? fmt::format(" and {} equivalent", rank.replicas - 1) : "",
        seconds_text(rank.compute), seconds_text(rank.waiting));
    const auto busy = busy_text(rank, program);
    if (!busy.empty()) text += fmt::format("; streams: {}", busy);
    text += fmt::format("; {}{}\n", bytes_text(static_cast<double>(program.peak_bytes)),
                        program.exact_memory ? "" : " (estimate)");
  }
  return text;
}

std::string to_json(const Simulation& simulation, const compile::Programs& programs,
                    const cost::Cluster& cluster, const Utilisation& utilisation) {
  const auto found = by_rank(programs);
  nlohmann::json json{{"format", "perigee.simulation/1"},
                      {"cluster", cluster.name},
                      {"step_seconds", simulation.step_seconds},
                      {"bubble_ratio", simulation.bubble_ratio},
                      {"measured_share", simulation.measured_share},
                      {"model_flops", utilisation.flops},
                      {"mfu", utilisation.mfu},
                      {"ranks", nlohmann::json::array()}};
  for (const auto& rank : simulation.ranks) {
    const auto& program = *found.at(rank.rank);
    nlohmann::json streams = nlohmann::json::object();
    for (size_t s = 0; s < rank.streams.size(); ++s)
      streams[program.streams[s].name()] = rank.streams[s];
    json["ranks"].push_back({{"rank", rank.rank},
                             {"alike", rank.replicas},
                             {"end", rank.end},
                             {"compute", rank.compute},
                             {"waiting", rank.waiting},
                             {"streams", std::move(streams)},
                             {"peak_bytes", program.peak_bytes},
                             {"exact_memory", program.exact_memory}});
  }
  return json.dump(1) + "\n";
}

}  // namespace perigee::simulate
