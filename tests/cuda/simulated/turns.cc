#include "tests/cuda/simulated/turns.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <stdexcept>
#include <utility>

#include "tests/cuda/simulated/machine.h"
#include "tests/cuda/simulated/state.h"

namespace perigee::cuda::simulated {
namespace {

thread_local int own_rank = -1;  // of this thread's Turn
thread_local Label own_label;

// A stream or a thread that waits.
struct Actor {
  const StreamState* stream = nullptr;
  int rank = -1;
  auto operator<=>(const Actor&) const = default;
};

std::string name_of(const StreamState& stream) {
  return stream.name.empty() ? "a stream of GPU " + std::to_string(stream.device) : stream.name;
}

// Finds the cycle of waits from the threads on.
class Search {
 public:
  explicit Search(const Machine& machine) : machine_(machine) {}

  std::string run() {
    for (const int rank : machine_.turns.live) {
      if (visit({nullptr, rank})) return text_;
    }
    return "every thread waits, but in no cycle: " + dead_end_;
  }

 private:
  // Returns what the actor waits for; nothing where it does not wait.
  Wait wait_of(const Actor& actor, std::string& self) const {
    if (!actor.stream) {
      self = "rank " + std::to_string(actor.rank);
      const auto found = machine_.turns.waits.find(actor.rank);
      const auto named = machine_.turns.labels.find(actor.rank);
      if (named != machine_.turns.labels.end()) self += " at " + named->second;
      return found == machine_.turns.waits.end() ? Wait{} : found->second;
    }
    self = name_of(*actor.stream);
    if (actor.stream->queue.empty()) return {};
    const auto& op = actor.stream->queue.front();
    if (!op.what.empty()) self += " at " + op.what;
    return op.wait ? op.wait() : Wait{};
  }

  bool visit(const Actor& actor) {
    const auto on_path = std::find(path_.begin(), path_.end(), actor);
    if (on_path != path_.end()) {
      text_ = "deadlock: ";
      for (auto at = on_path - path_.begin(); at < std::ssize(path_); ++at) {
        text_ += lines_[at] + "; ";
      }
      text_ += "a cycle";
      return true;
    }
    if (!seen_.insert(actor).second) return false;
    std::string self;
    const auto wait = wait_of(actor, self);
    path_.push_back(actor);
    lines_.push_back(self + " waits for " + wait.what);
    for (const auto* stream : wait.streams) {
      if (visit({stream, -1})) return true;
    }
    for (const int rank : wait.ranks) {
      if (visit({nullptr, rank})) return true;
    }
    if (wait.streams.empty() && wait.ranks.empty()) dead_end_ = self + " does not go on";
    path_.pop_back();
    lines_.pop_back();
    return false;
  }

  const Machine& machine_;
  std::vector<Actor> path_;
  std::vector<std::string> lines_;
  std::set<Actor> seen_;
  std::string text_, dead_end_;
};

// Gives the turn to a thread, and returns when it is this thread's again.
void give(Machine& m, Lock& lock, int rank) {
  m.turns.current = rank;
  if (rank == own_rank) return;
  m.changed.notify_all();
  m.changed.wait(lock, [&] { return m.turns.current == own_rank; });
}

int next_after(const Turns& turns, int rank) {
  const auto next = std::upper_bound(turns.live.begin(), turns.live.end(), rank);
  return next == turns.live.end() ? turns.live.front() : *next;
}

int any_of(Machine& m) { return m.turns.live[m.random() % m.turns.live.size()]; }

}  // namespace

bool Machine::in_turns() const { return own_rank >= 0 && turns.open; }

void Machine::submitted(Lock& lock) {
  if (!in_turns()) return;
  turns.idle = 0;
  turns.polled.erase(own_rank);
  if (random() % 4 == 0) run_some(static_cast<int64_t>(random() % 4));
  if (random() % 16 == 0) give(*this, lock, any_of(*this));
}

bool Machine::poll(Lock& lock, const EventState& event) {
  // Only a thread that asks for the same event again waits for it.
  const bool again = std::exchange(turns.polled[own_rank], &event) == &event;
  if (again) return wait_a_turn(lock, wait_of(event));
  if (run_some(static_cast<int64_t>(random() % 16)) > 0) turns.idle = 0;
  return turns.deadlock.empty();
}

bool Machine::wait_a_turn(Lock& lock, const Wait& wait) {
  if (!turns.deadlock.empty()) return false;
  turns.waits[own_rank] = wait;
  turns.labels[own_rank] = own_label.what;
  const auto ran = run_some(1 + static_cast<int64_t>(random() % 16));
  if (ran > 0) {
    turns.idle = 0;
    if (random() % 4 == 0) give(*this, lock, any_of(*this));
  } else {
    if (++turns.idle > 3 * std::ssize(turns.live)) {
      turns.deadlock = Search(*this).run();
      return false;
    }
    give(*this, lock, next_after(turns, own_rank));
  }
  turns.waits.erase(own_rank);
  return turns.deadlock.empty();
}

Wait Machine::wait_of(const EventState& event) const {
  Wait wait{.what = "an event", .streams = {}, .ranks = {}};
  if (!event.on) return wait;
  wait.what += " of " + name_of(*event.on);
  if (!event.after.empty()) wait.what += " after " + event.after;
  wait.streams = {event.on};
  return wait;
}

std::string label_or(const char* otherwise) {
  return own_label.what.empty() ? otherwise : own_label.what;
}

void name_by_label(StreamState& stream) {
  if (!own_label.stream.empty()) stream.name = own_label.stream;
}

void set_label(Label label) { own_label = std::move(label); }

Label label_of_thread() { return own_label; }

std::string label() { return own_label.what; }

void name_stream(cudaStream_t stream, const std::string& name) {
  auto& m = machine();
  const Lock lock(m.mutex);
  m.stream(stream).name = name;
}

Turn::Turn(int rank, int count) {
  auto& m = machine();
  Lock lock(m.mutex);
  auto& turns = m.turns;
  turns.expected = count;
  turns.live.insert(std::upper_bound(turns.live.begin(), turns.live.end(), rank), rank);
  if (std::ssize(turns.live) == count) {
    // Which stream has which address, and how far the work is, depended on the threads so far.
    while (m.run_some(1000) > 0) {
    }
    for (const auto& stream : m.streams) stream->order = 0;
    m.random.seed(m.seed);
    m.order = 0;
    turns.open = true;
    turns.current = turns.live.front();
    m.changed.notify_all();
  }
  own_rank = rank;
  if (!m.changed.wait_for(lock, std::chrono::seconds(20),
                          [&] { return turns.open && turns.current == rank; }) &&
      !turns.open) {
    own_rank = -1;
    std::erase(turns.live, rank);
    throw std::logic_error("another rank did not take part in the turns");
  }
  m.changed.wait(lock, [&] { return turns.current == rank; });
}

Turn::~Turn() {
  auto& m = machine();
  const Lock lock(m.mutex);
  auto& turns = m.turns;
  std::erase(turns.live, own_rank);
  turns.waits.erase(own_rank);
  turns.idle = 0;
  if (turns.live.empty()) {
    turns.open = false;
  } else {
    turns.current = any_of(m);
  }
  own_rank = -1;
  own_label = {};
  m.changed.notify_all();
}

uint64_t order_of_work() {
  auto& m = machine();
  const Lock lock(m.mutex);
  return m.order;
}

std::string deadlock() {
  auto& m = machine();
  const Lock lock(m.mutex);
  return m.turns.deadlock;
}

}  // namespace perigee::cuda::simulated
