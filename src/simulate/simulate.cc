#include "simulate/simulate.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/fail.h"
#include "compile/events.h"
#include "simulate/classes.h"
#include "simulate/steps.h"

namespace perigee::simulate {
namespace {

using compile::Interval;
using compile::Program;

// A collective that at least one of its actors has started.
struct Transfer {
  const SimulatedCollective* link = nullptr;  // of the actor that started it first
  struct Party {
    int32_t actor;
    size_t event;  // index into State::done
    const SimulatedStep* step;
    int32_t section, microbatch;
  };
  std::vector<Party> parties;
  size_t ready = 0;      // parties at whose stream it is first
  double begin = 0;      // -1: not begun
  double remaining = 0;  // seconds at rate 1
  double rate = 0;       // 1: no contention
  double updated = 0;
  int32_t version = 0;
};

// The progress of a rank. Its clock runs ahead of the simulation's until it waits, since nothing
// else affects it before.
struct State {
  const Program* program = nullptr;
  const RankSteps* steps = nullptr;
  double clock = 0, compute = 0;
  size_t run = 0, step = 0;
  size_t blocked = SIZE_MAX;                // index into `done` that it waits for
  std::vector<double> done;                 // by event and copy: end; NaN: started; -1: not started
  std::vector<double> began, work;          // like `done`; work: seconds, 0 after the first wait
  std::vector<std::deque<int32_t>> queues;  // by stream: transfers in order
  std::vector<double> busy;                 // by stream
  std::vector<int32_t> active;              // by network level: running transfers
  std::map<int32_t, int64_t> met;           // by meeting: collectives so far
  bool ended = false;
  size_t copies = 1;
  std::vector<bool> once;      // by event: compile::started_once
  size_t recorded = SIZE_MAX;  // run of the last of SectionRuns
};

struct Event {
  double time;
  int64_t order;  // of creation: ties are broken the same way every time
  enum class Kind : uint8_t { issue, complete, resume } kind;
  int32_t subject;  // issue: index into issues; complete: transfer; resume: actor
  int32_t version;
};

struct Later {
  bool operator()(const Event& a, const Event& b) const {
    return std::tie(a.time, a.order) > std::tie(b.time, b.order);
  }
};

class Engine {
 public:
  Engine(std::vector<Actor> actors, std::vector<RankSteps> steps, const cost::Cluster& cluster,
         const SimulateOptions& options)
      : actors_(std::move(actors)),
        steps_(std::move(steps)),
        shared_cores_(cluster.shared_cores),
        record_(options.intervals),
        record_runs_(options.runs) {
    intervals.resize(actors_.size());
    runs.resize(actors_.size());
    for (size_t a = 0; a < actors_.size(); ++a) {
      const auto* program = actors_[a].program;
      State state{.program = program, .steps = &steps_[a]};
      state.copies = static_cast<size_t>(program->most_copies());
      state.once = compile::started_once(*program);
      state.done.assign(static_cast<size_t>(program->events) * state.copies, -1);
      state.began = state.work = std::vector<double>(state.done.size());
      state.queues.resize(program->streams.size());
      state.busy.resize(program->streams.size());
      state.active.resize(cluster.links.size());
      states_.push_back(std::move(state));
    }
  }

  void run() {
    for (size_t a = 0; a < states_.size(); ++a) advance(static_cast<int32_t>(a));
    while (!events_.empty()) {
      const auto event = events_.top();
      events_.pop();
      now_ = event.time;
      switch (event.kind) {
        case Event::Kind::issue:
          issue(event.subject);
          break;
        case Event::Kind::complete:
          if (transfers_[event.subject].version == event.version) complete(event.subject);
          break;
        case Event::Kind::resume:
          advance(event.subject);
          break;
      }
    }
    for (size_t a = 0; a < states_.size(); ++a) {
      if (states_[a].ended) continue;
      const auto& state = states_[a];
      const auto& run = state.program->order[std::min(state.run, state.program->order.size() - 1)];
      fail_run("simulate", "the programs deadlock: rank {} waits in section {}", actors_[a].rank,
               state.program->sections[run.section].name());
    }
  }

  std::vector<RankTime> times() const {
    std::vector<RankTime> result;
    for (size_t a = 0; a < states_.size(); ++a) {
      const auto& state = states_[a];
      RankTime time{.rank = actors_[a].rank,
                    .replicas = actors_[a].replicas,
                    .end = state.clock,
                    .compute = state.compute,
                    .waiting = state.clock - state.compute};
      time.streams = state.busy;
      time.streams[0] = state.compute;
      result.push_back(std::move(time));
    }
    return result;
  }

  std::vector<std::vector<Interval>> intervals;
  std::vector<std::vector<SectionRun>> runs;

 private:
  struct Issue {
    int32_t actor;
    Transfer::Party party;
    const SimulatedCollective* link;
  };

  void push(double time, Event::Kind kind, int32_t subject, int32_t version = 0) {
    events_.push({time, order_++, kind, subject, version});
  }

  size_t place_of(const State& state, int32_t event, const compile::Run& run) const {
    const auto frame = state.program->sections[run.section].frame;
    const auto copy = state.once[event] ? 0 : state.program->copy_of(run.slot, frame);
    return static_cast<size_t>(event) * state.copies + static_cast<size_t>(copy);
  }

  // Outside of a pipeline's parts, waits for the event of every run that has started it.
  bool wait(State& state, int32_t event, const compile::Run& run) {
    if (state.program->sections[run.section].frame >= 0) {
      return wait(state, place_of(state, event, run));
    }
    const auto first = static_cast<size_t>(event) * state.copies;
    for (size_t copy = 0; copy < state.copies; ++copy) {
      if (!wait(state, first + copy)) return false;
    }
    return true;
  }

  // Returns false where the event is not complete: the actor is then blocked.
  bool wait(State& state, size_t place) {
    const double done = state.done[place];
    if (std::isnan(done)) {
      state.blocked = place;
      return false;
    }
    const double seconds = std::exchange(state.work[place], 0);
    const double held = shared_cores_ ? held_up(state.clock, state.began[place], done, seconds) : 0;
    state.clock = std::max(state.clock, done) + held;
    return true;
  }

  void advance(int32_t a) {
    auto& state = states_[a];
    state.blocked = SIZE_MAX;
    for (; state.run < state.program->order.size(); ++state.run, state.step = 0) {
      const auto& run = state.program->order[state.run];
      if (run.after_writes) continue;
      const auto& list = state.steps->sections[run.section];
      for (; state.step < list.size(); ++state.step) {
        const auto& step = list[state.step];
        if (step.kind == SimulatedStep::Kind::compute) {
          if (record_ && step.seconds > 0) record(a, step, run, 0, state.clock, step.seconds, 0);
          if (record_runs_ && step.seconds > 0) record_run(a, run, step.seconds);
          state.clock += step.seconds;
          state.compute += step.busy;
        } else if (step.kind == SimulatedStep::Kind::start) {
          const auto place = place_of(state, step.event, run);
          state.done[place] = NAN;
          issues_.push_back(
              {a, {a, place, &step, run.section, run.microbatch}, &state.steps->links[step.link]});
          push(state.clock, Event::Kind::issue, static_cast<int32_t>(issues_.size()) - 1);
        } else if (!wait(state, step.event, run)) {
          return;
        }
      }
      for (const auto& [stream, seconds] : state.steps->hidden[run.section]) {
        state.busy[stream] += seconds;
      }
    }
    for (size_t place = 0; place < state.done.size(); ++place) {
      if (!wait(state, place)) return;
    }
    state.ended = true;
  }

  void record_run(int32_t a, const compile::Run& run, double seconds) {
    auto& state = states_[a];
    if (state.recorded != state.run) {
      runs[a].push_back({run.section, run.microbatch, state.clock, state.clock});
      state.recorded = state.run;
    }
    runs[a].back().end = state.clock + seconds;
  }

  void issue(int32_t index) {
    const auto& issued = issues_[index];
    auto& state = states_[issued.actor];
    const auto count = state.met[issued.link->meeting]++;
    // A collective of one actor, or a message between equivalent ranks, has no other party.
    const bool alone = issued.link->actors.size() == 1;
    const auto meeting = std::tuple(issued.link->meeting, count, alone ? issued.actor : -1);
    const auto [found, added] = meetings_.try_emplace(meeting,
                                                      static_cast<int32_t>(transfers_.size()));
    const int32_t t = found->second;
    if (added) transfers_.push_back({.link = issued.link, .begin = -1});
    transfers_[t].parties.push_back(issued.party);
    auto& queue = state.queues[issued.link->stream];
    queue.push_back(t);
    if (queue.front() == t) ready(t);
    if (transfers_[t].parties.size() == issued.link->actors.size()) meetings_.erase(meeting);
  }

  void ready(int32_t t) {
    auto& transfer = transfers_[t];
    if (++transfer.ready < transfer.link->actors.size()) return;
    transfer.begin = transfer.updated = now_;
    transfer.remaining = transfer.link->seconds;
    under_way_.push_back(t);
    change(transfer, 1);
  }

  // Adds `by` running transfers at the level of the transfer's actors: changes the rates of all
  // transfers that share a link with it.
  void change(const Transfer& transfer, int32_t by) {
    const int level = transfer.link->level;
    if (level >= 0) {
      for (int32_t a : transfer.link->actors) states_[a].active[level] += by;
    }
    for (int32_t t : under_way_) {
      auto& other = transfers_[t];
      int32_t most = 1;
      if (other.link->level >= 0) {
        for (int32_t a : other.link->actors) {
          most = std::max(most, states_[a].active[other.link->level]);
        }
      }
      const double rate = 1.0 / most;
      if (rate == other.rate) continue;
      other.remaining -= (now_ - other.updated) * other.rate;
      other.updated = now_;
      other.rate = rate;
      push(now_ + std::max(0.0, other.remaining) / rate, Event::Kind::complete, t, ++other.version);
    }
  }

  void complete(int32_t t) {
    under_way_.erase(std::find(under_way_.begin(), under_way_.end(), t));
    // Moved out to free its memory.
    const auto transfer = std::move(transfers_[t]);
    transfers_[t] = {.version = -1};
    change(transfer, -1);
    for (const auto& party : transfer.parties) {
      auto& state = states_[party.actor];
      const int32_t stream = state.steps->links[party.step->link].stream;
      state.busy[stream] += now_ - transfer.begin;
      if (record_) {
        const compile::Run run{party.section, party.microbatch, 0};
        record(party.actor, *party.step, run, stream, transfer.begin, now_ - transfer.begin,
               bytes_of(*state.program, *party.step->source));
      }
      state.began[party.event] = transfer.begin;
      state.work[party.event] = transfer.link->seconds;
      state.done[party.event] = now_;
      auto& queue = state.queues[stream];
      queue.pop_front();
      if (!queue.empty()) ready(queue.front());
      if (state.blocked == party.event) push(now_, Event::Kind::resume, party.actor);
    }
  }

  static int64_t bytes_of(const Program& program, const compile::Instruction& instruction) {
    int64_t bytes = 0;
    const graph::Node node{.op = instruction.op, .args = instruction.args};
    node.each_operand([&](graph::ValueId v) { bytes += program.values[v.index].type.bytes(); });
    return bytes;
  }

  void record(int32_t a, const SimulatedStep& step, const compile::Run& run, int32_t stream,
              double begin, double seconds, int64_t bytes) {
    const auto& source = *step.source;
    intervals[a].push_back({.name = source.op,
                            .scope = source.scope,
                            .section = actors_[a].program->sections[run.section].name(),
                            .stream = stream,
                            .microbatch = run.microbatch,
                            .phase = source.phase,
                            .bytes = bytes,
                            .begin = std::llround(begin * 1e9),
                            .end = std::llround((begin + seconds) * 1e9)});
  }

  std::vector<Actor> actors_;
  std::vector<RankSteps> steps_;
  bool shared_cores_, record_, record_runs_;
  std::vector<State> states_;
  std::vector<Transfer> transfers_;
  std::vector<int32_t> under_way_;
  std::deque<Issue> issues_;
  std::map<std::tuple<int32_t, int64_t, int32_t>, int32_t> meetings_;
  std::priority_queue<Event, std::vector<Event>, Later> events_;
  int64_t order_ = 0;
  double now_ = 0;
};

}  // namespace

Simulation simulate(const compile::Programs& programs, const mesh::Mesh& mesh, OpCosts& costs,
                    const SimulateOptions& options) {
  // Of unequal submeshes only some ranks send messages: the ranks of a stage differ.
  RankClasses found;
  std::vector<std::map<compile::Stream, int64_t>> slowest;
  if (std::ssize(programs.ranks) > options.most_ranks && !mesh.is_ragged()) {
    found.of = stages_of(programs, mesh, options.stage_axis, costs.cluster());
    slowest = slowest_groups(programs, mesh, costs.cluster(), found.of);
  } else {
    found = rank_classes(programs, mesh, costs.cluster());
  }
  const auto& classes = found.of;
  std::deque<Program> renamed;  // copies whose message streams are those of their class
  std::vector<Actor> actors;
  std::map<int64_t, int32_t> actor_of;
  for (size_t i = 0; i < programs.ranks.size(); ++i) {
    const auto actor = static_cast<size_t>(classes[i]);
    if (actor == actors.size()) {
      const auto* program = &programs.of(i);
      if (!found.messages.empty()) {
        auto& own = renamed.emplace_back(*program);
        own.streams = programs.streams_of(i);
        for (auto& stream : own.streams) {
          const auto message = found.messages.find(stream);
          if (message != found.messages.end()) stream = message->second;
        }
        program = &own;
      }
      actors.push_back({.program = program, .rank = programs.ranks[i]});
      if (!slowest.empty()) actors.back().slowest = slowest[actor];
    }
    ++actors[actor].replicas;
    actor_of[programs.ranks[i]] = classes[i];
  }
  Meetings meetings;
  std::vector<RankSteps> steps;
  double seconds = 0, measured = 0;
  for (const auto& actor : actors) {
    steps.push_back(steps_of(actor, actor_of, mesh, costs, meetings, !options.intervals));
    seconds += steps.back().seconds;
    measured += steps.back().measured;
  }
  Engine engine(actors, std::move(steps), costs.cluster(), options);
  engine.run();
  Simulation result;
  result.ranks = engine.times();
  double compute = 0, ranks = 0;
  for (const auto& rank : result.ranks) {
    result.step_seconds = std::max(result.step_seconds, rank.end);
    compute += rank.compute * static_cast<double>(rank.replicas);
    ranks += static_cast<double>(rank.replicas);
  }
  if (result.step_seconds > 0) result.bubble_ratio = 1 - compute / (ranks * result.step_seconds);
  if (seconds > 0) result.measured_share = measured / seconds;
  if (options.intervals) result.intervals = std::move(engine.intervals);
  if (options.runs) result.runs = std::move(engine.runs);
  return result;
}

std::string chrome_trace(const Simulation& simulation, const compile::Programs& programs) {
  std::map<int64_t, const Program*> by_rank;
  for (size_t i = 0; i < programs.ranks.size(); ++i) by_rank[programs.ranks[i]] = &programs.of(i);
  std::vector<std::string> traces;
  for (size_t r = 0; r < simulation.intervals.size(); ++r) {
    const auto rank = simulation.ranks[r].rank;
    // An origin of 0 would select the first interval.
    auto intervals = simulation.intervals[r];
    for (auto& interval : intervals) {
      ++interval.begin;
      ++interval.end;
    }
    traces.push_back(compile::chrome_trace(intervals, rank, by_rank.at(rank)->streams, 1));
  }
  return compile::join_traces(traces);
}

}  // namespace perigee::simulate
