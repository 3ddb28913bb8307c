#include "train/measure/join_times.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace perigee::train {
namespace {

using Json = nlohmann::json;
using cost::CollectiveKind;
using cost::ExchangeKind;

// A mean of measured times.
struct Mean {
  profile::Measured sum;
  double count = 0;
  void add(const profile::Measured& one, double weight = 1) {
    sum.seconds += weight * one.seconds;
    sum.interval += weight * one.interval;
    sum.samples += one.samples;
    count += weight;
  }
  profile::Measured get() const { return {sum.seconds / count, sum.interval / count, sum.samples}; }
};

profile::Measured measured_of(const Json& time) {
  return {time[0].get<double>(), time[1].get<double>(), time[2].get<int64_t>()};
}

// Returns the mean of the ranks' times of each op.
std::map<std::string, profile::Measured> join_ops(const std::vector<Json>& ranks) {
  std::map<std::string, Mean> means;
  for (const auto& rank : ranks) {
    for (const auto& [key, time] : rank["ops"].items()) {
      means[key].add(measured_of(time));
    }
  }
  std::map<std::string, profile::Measured> ops;
  for (const auto& [key, mean] : means) ops[key] = mean.get();
  return ops;
}

PointsByKind points_of(const std::map<ExchangeKind, std::map<double, Mean>>& means) {
  PointsByKind points;
  for (const auto& [kind, by_bytes] : means) {
    for (const auto& [bytes, mean] : by_bytes) points[kind][bytes] = mean.get();
  }
  return points;
}

// The time of a collective is that of the rank on which it is shortest on average, the rank that
// arrives last: earlier ranks also wait for it. Delays that hit different ranks in turn stay in the
// time. Returns the mean over all collectives of a kind and size.
PointsByKind join_exchanges(const std::vector<Json>& ranks, const cost::Cluster& cluster) {
  struct Meeting {
    ExchangeKind kind;
    double bytes = 0, weight = 1;
    profile::Measured time;
  };
  std::map<std::pair<std::string, int64_t>, Meeting> meetings;
  for (const auto& rank : ranks) {
    std::map<std::string, int64_t> counts;
    for (const auto& exchange : rank["exchanges"]) {
      const auto group = exchange["group"].get<std::string>();
      const auto time = measured_of(exchange["time"]);
      const auto kind = cost::exchange_kind(cluster, exchange["kind"].get<CollectiveKind>(),
                                            exchange["ranks"].get<std::vector<int64_t>>());
      const auto [at, added] = meetings.try_emplace(
          {group, counts[group]++},
          Meeting{kind, exchange["bytes"].get<double>(), exchange["weight"].get<double>(), time});
      if (!added && time.seconds < at->second.time.seconds) at->second.time = time;
    }
  }
  std::map<ExchangeKind, std::map<double, Mean>> means;
  for (const auto& [place, meeting] : meetings)
    means[meeting.kind][meeting.bytes].add(meeting.time, meeting.weight);
  return points_of(means);
}

// Returns how far each rank's clock is ahead of the first rank's.
std::vector<int64_t> clocks_of(const std::vector<Json>& ranks) {
  std::vector<int64_t> ahead;
  for (const auto& rank : ranks) {
    std::vector<int64_t> differences;
    for (size_t step = 0; step < rank["barriers"].size(); ++step) {
      differences.push_back(rank["barriers"][step].get<int64_t>() -
                            ranks.front()["barriers"][step].get<int64_t>());
    }
    const auto median = differences.begin() + std::ssize(differences) / 2;
    std::ranges::nth_element(differences, median);
    ahead.push_back(*median);
  }
  return ahead;
}

// The time of a message runs from when both ranks have started it and the message before it has
// ended, until it is received. Returns the mean over all messages of a kind and size.
PointsByKind join_messages(const std::vector<Json>& ranks, const std::vector<size_t>& steps,
                           const cost::Cluster& cluster) {
  struct Meeting {
    ExchangeKind kind;
    double bytes = 0;
    std::vector<std::vector<int64_t>> begin;  // by side, by step
    std::vector<int64_t> end;
  };
  std::map<std::pair<std::string, int64_t>, Meeting> meetings;
  const auto ahead = clocks_of(ranks);
  for (size_t r = 0; r < ranks.size(); ++r) {
    const auto common = [&](const Json& moments) {
      auto list = moments.get<std::vector<int64_t>>();
      for (auto& moment : list) moment -= ahead[r];
      return list;
    };
    std::map<std::string, int64_t> counts;
    for (const auto& side : ranks[r]["messages"]) {
      const auto group = side["group"].get<std::string>();
      auto& meeting = meetings[{group, counts[group]++}];
      meeting.kind = cost::exchange_kind(cluster, CollectiveKind::message,
                                         side["ranks"].get<std::vector<int64_t>>());
      meeting.bytes = side["bytes"].get<double>();
      meeting.begin.push_back(common(side["begin"]));
      if (side["receives"].get<bool>()) meeting.end = common(side["end"]);
    }
  }
  std::map<ExchangeKind, std::map<double, Mean>> means;
  const Meeting* before = nullptr;
  std::string group;
  for (const auto& [place, meeting] : meetings) {
    if (place.first != group) before = nullptr;
    group = place.first;
    if (meeting.begin.size() == 2 && !meeting.end.empty()) {
      std::vector<double> seconds;
      for (const auto step : steps) {
        auto begin = std::max(meeting.begin[0][step], meeting.begin[1][step]);
        if (before) begin = std::max(begin, before->end[step]);
        seconds.push_back(1e-9 *
                          static_cast<double>(std::max<int64_t>(0, meeting.end[step] - begin)));
      }
      means[meeting.kind][meeting.bytes].add(profile::mean_of(seconds));
      before = &meeting;
    }
  }
  return points_of(means);
}

}  // namespace

std::string print(const StepTimes& times, const std::vector<int64_t>& barriers) {
  auto ops = Json::object();
  for (const auto& [key, time] : times.ops()) {
    ops[key] = {time.seconds, time.interval, time.samples};
  }
  auto exchanges = Json::array();
  for (const auto& [exchange, time, weight] : times.exchanges()) {
    exchanges.push_back({{"group", fmt::format("{} {}", exchange.stream.name(), exchange.ranks)},
                         {"kind", exchange.kind},
                         {"ranks", exchange.ranks},
                         {"bytes", exchange.bytes},
                         {"weight", weight},
                         {"time", {time.seconds, time.interval, time.samples}}});
  }
  auto messages = Json::array();
  for (const auto& side : times.messages()) {
    messages.push_back(
        {{"group", fmt::format("{} {}", side.exchange.stream.name(), side.exchange.ranks)},
         {"ranks", side.exchange.ranks},
         {"bytes", side.exchange.bytes},
         {"receives", side.receives},
         {"begin", side.begin},
         {"end", side.end}});
  }
  return Json{{"ops", std::move(ops)},
              {"exchanges", std::move(exchanges)},
              {"messages", std::move(messages)},
              {"barriers", barriers}}
      .dump();
}

JoinedTimes join(const std::vector<std::string>& ranks, const std::vector<size_t>& steps,
                 const cost::Cluster& cluster) {
  std::vector<Json> parsed;
  for (const auto& text : ranks) parsed.push_back(Json::parse(text));
  JoinedTimes joined{join_ops(parsed), join_exchanges(parsed, cluster)};
  joined.exchanges.merge(join_messages(parsed, steps, cluster));
  return joined;
}

}  // namespace perigee::train
