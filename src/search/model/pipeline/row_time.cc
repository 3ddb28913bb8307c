#include "search/model/pipeline/row_time.h"

#include <algorithm>

#include "base/infinity.h"
#include "schedule/description.h"

namespace perigee::search {
namespace {

// Rounds that are timed, of as many microbatches as the first stage has in flight; more
// of them extrapolate.
constexpr int64_t kRounds = 4;

// Forward passes of a stage before its first backward pass.
int64_t ahead(const schedule::Description& schedule, int64_t later_stages, int64_t microbatches) {
  if (schedule.holds_all) return microbatches;
  return std::min(microbatches, std::max<int64_t>(1, schedule.flight_slope) * later_stages);
}

class RowRun {
 public:
  RowRun(const schedule::Description& schedule, std::span<const RowStage> stages,
         int64_t microbatches)
      : stages_(stages), microbatches_(microbatches), states_(stages.size()) {
    const auto count = std::ssize(stages);
    for (int64_t s = 0; s < count; ++s) {
      auto& state = states_[static_cast<size_t>(s)];
      state.ahead = ahead(schedule, count - 1 - s, microbatches);
      state.forward = 2 * s * microbatches;
      state.backward = state.forward + microbatches;
    }
    messages_.resize(static_cast<size_t>(2 * count * microbatches));
    // The inputs of the first stage and the gradients of the last one need no message.
    for (int64_t k = 0; k < microbatches; ++k) {
      messages_[states_.front().forward + k].arrival = 0;
      messages_[states_.back().backward + k].arrival = 0;
    }
    for (size_t s = 0; s < states_.size(); ++s) want(s, 0, 0);
  }

  RowTimes run() {
    for (int64_t left = 2 * microbatches_ * std::ssize(stages_); left > 0; --left) step();
    RowTimes times;
    for (const auto& state : states_) times.ends.push_back(state.free);
    times.seconds = *std::ranges::max_element(times.ends);
    return times;
  }

 private:
  struct Message {
    double sent = kInfinity, wanted = kInfinity;  // since when both ends are ready
    double arrival = kInfinity;
  };
  struct State {
    int64_t ahead = 0, next = 0;        // next: position in the order
    int64_t forward = 0, backward = 0;  // first message to receive, index into messages_
    double free = 0, links = 0;
  };
  struct Section {
    bool forward = true;
    int64_t microbatch = 0;
  };

  Section section(const State& state, int64_t at) const {
    if (at < state.ahead) return {true, at};
    at -= state.ahead;
    const auto pairs = microbatches_ - state.ahead;
    if (at >= 2 * pairs) return {false, at - pairs};
    return {at % 2 == 0, at / 2 + (at % 2 == 0 ? state.ahead : 0)};
  }

  Message& message(const State& state, const Section& section) {
    return messages_[(section.forward ? state.forward : state.backward) + section.microbatch];
  }

  // The stage is ready to receive the input of its section at that position.
  void want(size_t s, int64_t at, double now) {
    auto& state = states_[s];
    if (at >= 2 * microbatches_) return;
    const auto wanted = section(state, at);
    auto& incoming = message(state, wanted);
    incoming.wanted = now;
    if (incoming.sent < kInfinity) move(s, wanted);
  }

  // Both ends of a message to the stage are ready.
  void move(size_t s, const Section& received) {
    auto& incoming = message(states_[s], received);
    if (incoming.arrival < kInfinity) return;
    const auto from = received.forward ? s - 1 : s + 1;
    const double takes = received.forward ? stages_[from].send_seconds : stages_[s].return_seconds;
    auto &a = states_[from].links, &b = states_[s].links;
    const double begin = std::max({incoming.sent, incoming.wanted, a, b});
    incoming.arrival = a = b = begin + takes;
  }

  // Runs the section that can begin first.
  void step() {
    size_t first = 0;
    double begin = kInfinity;
    for (size_t s = 0; s < states_.size(); ++s) {
      auto& state = states_[s];
      if (state.next >= 2 * microbatches_) continue;
      const auto own = section(state, state.next);
      const double arrival = message(state, own).arrival -
                             (own.forward ? 0 : stages_[s].recomputed);
      const double at = std::max(state.free, arrival);
      if (at < begin) {
        begin = at;
        first = s;
      }
    }
    auto& state = states_[first];
    const auto& stage = stages_[first];
    const auto own = section(state, state.next);
    // A message is received while the previous section runs.
    want(first, ++state.next, begin);
    const double links = own.forward ? stage.forward_links : stage.backward_links;
    state.free = begin + (own.forward ? stage.forward : stage.backward);
    if (links > 0) {
      state.links = std::max(begin, state.links) + links;
      state.free = std::max(state.free, state.links);
    }
    if (own.forward ? first + 1 == states_.size() : first == 0) return;
    const auto to = own.forward ? first + 1 : first - 1;
    auto& outgoing = message(states_[to], own);
    outgoing.sent = state.free - (own.forward ? 0 : stage.tail);
    if (outgoing.wanted < kInfinity) move(to, own);
  }

  std::span<const RowStage> stages_;
  const int64_t microbatches_;
  std::vector<State> states_;
  std::vector<Message> messages_;  // by stage, kind and microbatch
};

}  // namespace

RowTimes time_row(const std::string& name, std::span<const RowStage> stages, int64_t microbatches) {
  const auto& schedule = schedule::describe(name);
  const auto run = [&](int64_t count) { return RowRun(schedule, stages, count).run(); };
  const auto round = ahead(schedule, std::ssize(stages) - 1, microbatches) + 1;
  const auto most_microbatches = kRounds * round;
  if (schedule.holds_all || microbatches <= most_microbatches) return run(microbatches);
  const auto half = run(most_microbatches / 2);
  auto times = run(most_microbatches);
  // Each further one takes at least the slowest stage's passes.
  double seconds_per_microbatch = (times.seconds - half.seconds) /
                                  static_cast<double>(most_microbatches - most_microbatches / 2);
  for (const auto& stage : stages) {
    seconds_per_microbatch = std::max(seconds_per_microbatch, stage.forward + stage.backward);
  }
  const double added_seconds = seconds_per_microbatch *
                               static_cast<double>(microbatches - most_microbatches);
  times.seconds += added_seconds;
  for (auto& end : times.ends) end += added_seconds;
  return times;
}

}  // namespace perigee::search
