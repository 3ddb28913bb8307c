#include "train/measure/step_times.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace perigee::train {

using compile::Instruction;

StepTimes::StepTimes(const compile::Program& program, const mesh::Mesh& mesh,
                     const std::vector<std::vector<double>>& represents) {
  std::map<const Instruction*, std::string> keys;
  std::vector<std::vector<std::pair<const Instruction*, double>>> transfers(program.streams.size());
  bool follows = false;
  const auto read = [&](const Instruction& instruction, double weight) {
    const bool op = instruction.kind == Instruction::Kind::op;
    const bool computes = op || instruction.kind == Instruction::Kind::load;
    if (computes) {
      const auto [key, added] = keys.try_emplace(&instruction);
      if (added && op) key->second = compile::key(simulate::instance_of(program, instruction));
      ops_.push_back({key->second, weight, follows, {}});
    } else if (instruction.kind == Instruction::Kind::collective) {
      transfers[instruction.stream].emplace_back(&instruction, weight);
    }
    follows = computes;
  };
  for (const auto& run : program.order) {
    if (!run.in_every_step()) continue;
    const auto& list = program.sections[run.section].instructions;
    for (size_t i = 0; i < list.size(); ++i) {
      read(list[i], represents.empty() ? 1 : represents[run.section][i]);
    }
  }
  by_stream_.resize(transfers.size());
  for (size_t stream = 0; stream < transfers.size(); ++stream) {
    for (const auto& [transfer, weight] : transfers[stream]) {
      auto& place = by_stream_[stream].emplace_back();
      auto exchange = simulate::exchange_of(program, *transfer, mesh, program.rank);
      const bool receives = transfer->op == "comm::receive";
      if (exchange.kind != cost::CollectiveKind::message) {
        place.collective = collectives_.size();
        collectives_.push_back({std::move(exchange), weight, {}});
      } else if (receives || transfer->op == "comm::send") {
        place.message = messages_.size();
        messages_.push_back({std::move(exchange), receives, {}, {}});
      }
    }
  }
}

void StepTimes::add(const std::vector<compile::Interval>& intervals) {
  const auto seconds = [](int64_t begin, int64_t end) {
    return 1e-9 * static_cast<double>(end - begin);
  };
  // The intervals of ops in the order in which they ran, then those of communication in the order
  // in which it was waited for.
  for (size_t i = 0; i < ops_.size(); ++i) {
    const auto begin = ops_[i].follows ? intervals[i - 1].end : intervals[i].begin;
    ops_[i].seconds.push_back(seconds(begin, intervals[i].end));
  }
  std::vector<std::vector<const compile::Interval*>> ran(by_stream_.size());
  for (size_t i = ops_.size(); i < intervals.size(); ++i) {
    ran[intervals[i].stream].push_back(&intervals[i]);
  }
  for (size_t stream = 0; stream < ran.size(); ++stream) {
    std::ranges::stable_sort(ran[stream], {}, &compile::Interval::begin);
    for (size_t i = 0; i < by_stream_[stream].size(); ++i) {
      const auto [collective, message] = by_stream_[stream][i];
      const auto begin = ran[stream][i]->begin, end = ran[stream][i]->end;
      if (collective != SIZE_MAX) collectives_[collective].seconds.push_back(seconds(begin, end));
      if (message == SIZE_MAX) continue;
      messages_[message].begin.push_back(begin);
      messages_[message].end.push_back(end);
    }
  }
  add_wake_up(intervals, ran);
  const auto begin = std::ranges::min_element(intervals, {}, &compile::Interval::begin);
  const auto end = std::ranges::max_element(intervals, {}, &compile::Interval::end);
  durations_.push_back(intervals.empty() ? 0 : end->end - begin->begin);
  std::vector<size_t> order(durations_.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](size_t step) { return durations_[step]; });
  const auto half = (order.size() + 1) / 2;
  const auto first = order.begin() + static_cast<std::ptrdiff_t>((order.size() - half) / 2);
  typical_.assign(first, first + static_cast<std::ptrdiff_t>(half));
}

void StepTimes::add_wake_up(const std::vector<compile::Interval>& intervals,
                            const std::vector<std::vector<const compile::Interval*>>& ran) {
  // The ends of all transfers that ops may have waited for.
  std::vector<std::pair<int64_t, StreamTransfer>> ends;
  for (size_t stream = 0; stream < ran.size(); ++stream) {
    for (size_t i = 0; i < by_stream_[stream].size(); ++i) {
      ends.emplace_back(ran[stream][i]->end, by_stream_[stream][i]);
    }
  }
  const auto end_of = [](const auto& transfer) { return transfer.first; };
  std::ranges::stable_sort(ends, {}, end_of);
  for (size_t i = 1; i < ops_.size(); ++i) {
    const auto begin = intervals[i].begin;
    const auto later = std::ranges::upper_bound(ends, begin, {}, end_of);
    if (ops_[i].follows || later == ends.begin()) continue;
    const auto& [end, place] = *std::prev(later);
    if (end <= intervals[i - 1].end) continue;
    if (place.message != SIZE_MAX) messages_[place.message].end.back() = begin;
    if (place.collective == SIZE_MAX) continue;
    collectives_[place.collective].seconds.back() += 1e-9 * static_cast<double>(begin - end);
  }
}

profile::Measured StepTimes::typical(const std::vector<double>& by_step) const {
  std::vector<double> samples;
  for (const auto step : typical_) samples.push_back(by_step[step]);
  return profile::mean_of(samples);
}

std::map<std::string, profile::Measured> StepTimes::ops() const {
  std::map<std::string, std::pair<profile::Measured, double>> sums;
  for (const auto& op : ops_) {
    if (op.key.empty() || op.weight == 0 || op.seconds.empty()) continue;
    const auto place = typical(op.seconds);
    auto& [sum, weight] = sums[op.key];
    sum.seconds += op.weight * place.seconds;
    sum.interval += op.weight * place.interval;
    sum.samples += place.samples;
    weight += op.weight;
  }
  std::map<std::string, profile::Measured> times;
  for (const auto& [key, of_key] : sums) {
    const auto& [sum, n] = of_key;
    times[key] = {sum.seconds / n, sum.interval / n, sum.samples};
  }
  return times;
}

std::vector<ExchangeTime> StepTimes::exchanges() const {
  std::vector<ExchangeTime> times;
  for (const auto& [exchange, weight, seconds] : collectives_) {
    if (!seconds.empty()) times.push_back({exchange, typical(seconds), weight});
  }
  return times;
}

}  // namespace perigee::train
