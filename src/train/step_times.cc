#include "train/step_times.h"

#include <algorithm>
#include <utility>

namespace perigee::train {

using compile::Instruction;

StepTimes::StepTimes(const compile::Program& program, const mesh::Mesh& mesh) {
  std::map<const Instruction*, std::string> keys;
  std::vector<std::vector<search::Exchange>> exchanges(program.streams.size());
  const auto read = [&](const Instruction& instruction) {
    const bool op = instruction.kind == Instruction::Kind::op;
    if (op || instruction.kind == Instruction::Kind::load) {
      const auto [key, added] = keys.try_emplace(&instruction);
      if (added && op) key->second = compile::key(search::instance_of(program, instruction));
      keys_.push_back(key->second);
    } else if (instruction.kind == Instruction::Kind::collective) {
      exchanges[instruction.stream].push_back(
          search::exchange_of(program, instruction, mesh, program.rank));
    }
  };
  for (const auto& run : program.order) {
    if (run.every > 1) continue;
    for (const auto& instruction : program.sections[run.section].instructions) read(instruction);
  }
  samples_.resize(keys_.size());
  by_stream_.resize(exchanges.size());
  for (size_t stream = 0; stream < exchanges.size(); ++stream) {
    for (auto& exchange : exchanges[stream]) {
      const bool wanted = exchange.kind != cost::CollectiveKind::message;
      by_stream_[stream].push_back(wanted ? exchanges_.size() : SIZE_MAX);
      if (wanted) exchanges_.push_back({std::move(exchange), {}});
    }
  }
}

void StepTimes::add(const std::vector<compile::Interval>& intervals) {
  ++steps_;
  const auto seconds = [](const compile::Interval& interval) {
    return 1e-9 * static_cast<double>(interval.end - interval.begin);
  };
  // Ops as they ran, behind them communication as it was waited for.
  for (size_t i = 0; i < keys_.size(); ++i) samples_[i].push_back(seconds(intervals[i]));
  std::vector<std::vector<const compile::Interval*>> ran(by_stream_.size());
  for (size_t i = keys_.size(); i < intervals.size(); ++i) {
    ran[intervals[i].stream].push_back(&intervals[i]);
  }
  for (size_t stream = 0; stream < ran.size(); ++stream) {
    std::stable_sort(ran[stream].begin(), ran[stream].end(),
                     [](const auto* a, const auto* b) { return a->begin < b->begin; });
    for (size_t i = 0; i < by_stream_[stream].size(); ++i) {
      const auto index = by_stream_[stream][i];
      if (index != SIZE_MAX) exchanges_[index].seconds.push_back(seconds(*ran[stream][i]));
    }
  }
}

std::map<std::string, profile::Measured> StepTimes::ops() const {
  std::map<std::string, std::pair<profile::Measured, int64_t>> sums;
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (keys_[i].empty() || samples_[i].empty()) continue;
    const auto place = profile::median_of(samples_[i]);
    auto& [sum, places] = sums[keys_[i]];
    sum.seconds += place.seconds;
    sum.interval += place.interval;
    sum.samples += place.samples;
    ++places;
  }
  std::map<std::string, profile::Measured> times;
  for (const auto& [key, of_key] : sums) {
    const auto& [sum, places] = of_key;
    const auto n = static_cast<double>(places);
    times[key] = {sum.seconds / n, sum.interval / n, sum.samples};
  }
  return times;
}

}  // namespace perigee::train
