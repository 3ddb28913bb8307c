#include "view/trace_times.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/fail.h"

namespace perigee::view {
namespace {

using nlohmann::json;

constexpr size_t kGaps = 10;

struct Busy {
  double begin = 0, end = 0;  // microseconds
  std::string op;
};

struct Rank {
  std::vector<Busy> compute, transfers;
};

// A stretch of time in which a stream is busy.
struct Stretch {
  double begin = 0, end = 0;
  std::string first, last;  // ops that it begins and ends with
};

// Returns the stretches that the intervals make together, ascending and apart.
std::vector<Stretch> stretches(std::vector<Busy> busy) {
  std::ranges::stable_sort(busy, {}, &Busy::begin);
  std::vector<Stretch> list;
  for (auto& next : busy) {
    if (list.empty() || next.begin > list.back().end) {
      list.push_back({next.begin, next.end, next.op, next.op});
    } else if (next.end > list.back().end) {
      list.back().end = next.end;
      list.back().last = next.op;
    }
  }
  return list;
}

double length(const std::vector<Stretch>& list) {
  double sum = 0;
  for (const auto& stretch : list) sum += stretch.end - stretch.begin;
  return sum;
}

// Returns how long the stretches of both lists are busy at once.
double common(const std::vector<Stretch>& a, const std::vector<Stretch>& b) {
  double sum = 0;
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    sum += std::max(0.0, std::min(a[i].end, b[k].end) - std::max(a[i].begin, b[k].begin));
    if (a[i].end < b[k].end) {
      ++i;
    } else {
      ++k;
    }
  }
  return sum;
}

std::string op_of(const json& event) {
  auto op = event.value("name", "");
  const auto scope = event.contains("args") ? event["args"].value("scope", "") : "";
  return scope.empty() ? op : op + " in " + scope;
}

std::map<int64_t, Rank> ranks_of(std::string_view trace) {
  std::map<int64_t, Rank> ranks;
  try {
    const auto whole = json::parse(trace);
    for (const auto& event : whole.at("traceEvents")) {
      if (event.value("ph", "") != "X") continue;
      const auto begin = event.at("ts").get<double>();
      auto& rank = ranks[event.at("pid").get<int64_t>()];
      auto& stream = event.at("tid").get<int64_t>() == 0 ? rank.compute : rank.transfers;
      stream.push_back({begin, begin + event.at("dur").get<double>(), op_of(event)});
    }
  } catch (const json::exception& error) {
    fail("trace", "a trace has Chrome trace events with ph, ts, dur, pid and tid, but: {}",
         error.what());
  }
  return ranks;
}

}  // namespace

json trace_times(std::string_view trace) {
  const auto ranks = ranks_of(trace);
  double begin = 0, end = 0;
  bool first = true;
  for (const auto& [number, rank] : ranks) {
    for (const auto* stream : {&rank.compute, &rank.transfers}) {
      for (const auto& busy : *stream) {
        begin = first ? busy.begin : std::min(begin, busy.begin);
        end = first ? busy.end : std::max(end, busy.end);
        first = false;
      }
    }
  }
  constexpr double kSecond = 1e-6;
  auto times = json::array();
  std::vector<std::pair<double, json>> gaps;
  for (const auto& [number, rank] : ranks) {
    const auto compute = stretches(rank.compute), transfers = stretches(rank.transfers);
    const double computed = length(compute), hidden = common(compute, transfers);
    const double exposed = length(transfers) - hidden;
    times.push_back({{"rank", number},
                     {"compute", kSecond * computed},
                     {"exposed", kSecond * exposed},
                     {"hidden", kSecond * hidden},
                     {"idle", kSecond * std::max(0.0, end - begin - computed - exposed)}});
    double from = begin;
    std::string after;
    for (size_t k = 0; k <= compute.size(); ++k) {
      const bool last = k == compute.size();
      const double to = last ? end : compute[k].begin;
      if (to > from) {
        const double filled = common({{from, to, "", ""}}, transfers);
        gaps.emplace_back(from - to, json{{"rank", number},
                                          {"begin", kSecond * (from - begin)},
                                          {"seconds", kSecond * (to - from)},
                                          {"kind", 2 * filled > to - from ? "exposed" : "idle"},
                                          {"after", after},
                                          {"before", last ? "" : compute[k].first}});
      }
      if (last) break;
      from = compute[k].end;
      after = compute[k].last;
    }
  }
  std::ranges::stable_sort(gaps, {}, &std::pair<double, json>::first);
  auto longest = json::array();
  for (size_t k = 0; k < std::min(gaps.size(), kGaps); ++k) longest.push_back(gaps[k].second);
  return {{"seconds", kSecond * (end - begin)}, {"ranks", times}, {"gaps", longest}};
}

}  // namespace perigee::view
