#include "search/model/pipeline/rounds.h"

#include <algorithm>

#include "schedule/description.h"

namespace perigee::search {
namespace {

// Groups of `stages` microbatches that are timed; more of them extrapolate.
constexpr int64_t kGroups = 3;

class RoundRun {
 public:
  RoundRun(const Schedule& schedule, const std::vector<PartTimes>& parts, double transfer)
      : schedule_(schedule),
        parts_(parts),
        transfer_(transfer),
        count_(static_cast<size_t>(schedule.microbatches)),
        forward_(parts.size() * count_, kOpen),
        backward_(parts.size() * count_, kOpen),
        next_(schedule.orders.size()),
        free_(schedule.orders.size()) {}

  double run() {
    // A stage runs until an input is missing; then its neighbours run.
    for (bool some = true; some;) {
      some = false;
      for (size_t s = 0; s < next_.size(); ++s) some = advance(s) || some;
      for (size_t s = next_.size(); s-- > 0;) some = advance(s) || some;
    }
    return *std::ranges::max_element(free_);
  }

 private:
  static constexpr double kOpen = -1;

  bool advance(size_t s) {
    const auto& order = schedule_.orders[s];
    const auto first = next_[s];
    for (; next_[s] < order.size(); ++next_[s]) {
      const auto& op = order[next_[s]];
      const auto part = static_cast<size_t>(op.chunk) * next_.size() + s;
      const auto own = part * count_ + static_cast<size_t>(op.microbatch);
      const auto& times = parts_[part];
      double ready = 0;
      if (op.kind == PipelineKind::forward) {
        if (part > 0) ready = arrival_after(forward_[own - count_]);
      } else if (part + 1 < parts_.size()) {
        ready = arrival_after(backward_[own + count_]);
        if (ready >= 0) ready = std::max(0.0, ready - times.recomputed);
      }
      if (ready < 0) break;
      const bool forward = op.kind == PipelineKind::forward;
      free_[s] = std::max(free_[s], ready) + (forward ? times.forward : times.backward);
      (forward ? forward_ : backward_)[own] = free_[s];
    }
    return next_[s] > first;
  }

  double arrival_after(double sent) const {
    return sent < 0 ? kOpen : sent + (next_.size() > 1 ? transfer_ : 0);
  }

  const Schedule& schedule_;
  const std::vector<PartTimes>& parts_;
  const double transfer_;
  const size_t count_;
  std::vector<double> forward_, backward_;  // ends, by part and microbatch
  std::vector<size_t> next_;
  std::vector<double> free_;
};

}  // namespace

const Schedule& Rounds::schedule_of(const Choice& choice, int64_t microbatches) {
  auto& schedule = schedules_[{choice.schedule, choice.pipe, choice.chunks, microbatches}];
  if (schedule.orders.empty()) {
    schedule = make_schedule({.name = choice.schedule,
                              .stages = static_cast<int>(choice.pipe),
                              .microbatches = static_cast<int>(microbatches),
                              .chunks = static_cast<int>(choice.chunks)});
  }
  return schedule;
}

double Rounds::run(const Choice& choice, int64_t microbatches, const std::vector<PartTimes>& parts,
                   double transfer) {
  return RoundRun(schedule_of(choice, microbatches), parts, transfer).run();
}

std::pair<double, double> Rounds::in_flight(const Choice& choice, bool first) {
  const auto count = static_cast<double>(choice.microbatches);
  if (schedule::describe(choice.schedule).holds_all)
    return {count, count * double(choice.chunks - 1)};
  const auto microbatches = std::min(choice.microbatches, kGroups * choice.pipe);
  const auto [entry, added] = flights_.try_emplace(
      {choice.schedule, choice.pipe, choice.chunks, microbatches, first});
  if (!added) return entry->second;
  const auto& orders = schedule_of(choice, microbatches).orders;
  const int chunk = first ? 0 : static_cast<int>(choice.chunks) - 1;
  int own = 0, others = 0, most = 0, most_others = 0;
  for (const auto& op : first ? orders.front() : orders.back()) {
    const bool forward = op.kind == PipelineKind::forward;
    auto& held = op.chunk == chunk ? own : others;
    auto& longest = op.chunk == chunk ? most : most_others;
    held += forward ? 1 : -1;
    longest = std::max(longest, held);
  }
  // Parts share room for one more than are in flight (compile/stages/frame_pools.h).
  const bool share = choice.chunks > 2;
  return entry->second = {most,
                          std::min<double>(most_others + share, count * double(choice.chunks - 1))};
}

double Rounds::seconds(const Choice& choice, const std::vector<PartTimes>& parts, double transfer) {
  const auto most_microbatches = kGroups * choice.pipe,
             fewer_microbatches = (kGroups - 1) * choice.pipe;
  if (choice.microbatches <= most_microbatches)
    return run(choice, choice.microbatches, parts, transfer);
  const double most_seconds = run(choice, most_microbatches, parts, transfer);
  const double seconds_per_microbatch = (most_seconds -
                                         run(choice, fewer_microbatches, parts, transfer)) /
                                        double(most_microbatches - fewer_microbatches);
  return most_seconds +
         seconds_per_microbatch * static_cast<double>(choice.microbatches - most_microbatches);
}

}  // namespace perigee::search
