#include "simulate/steps.h"

#include <algorithm>
#include <set>
#include <utility>

namespace perigee::simulate {
namespace {

using compile::Instruction;

// Folds the steps of one section.
class Folding {
 public:
  Folding(const std::vector<SimulatedStep>& steps, const std::vector<SimulatedCollective>& links,
          const std::set<int>& left_open, bool shared_cores)
      : steps_(steps), links_(links), left_open_(left_open), shared_cores_(shared_cores) {}

  std::vector<SimulatedStep> run() {
    std::vector<SimulatedStep> out;
    for (size_t i = 0; i < steps_.size();) {
      const auto end = closed_stretch(i);
      SimulatedStep folded;
      if (end > i && fold_range(i, end, folded)) {
        out.push_back(folded);
        i = end;
      } else {
        const auto& step = steps_[i++];
        if (step.kind == SimulatedStep::Kind::start) {
          in_flight_[step.event] = links_[step.link].level;
        } else if (step.kind == SimulatedStep::Kind::wait) {
          in_flight_.erase(step.event);
        }
        out.push_back(step);
      }
    }
    return out;
  }

  std::map<int32_t, double> hidden;

 private:
  // Whether a transfer from before a range may hold up the range's collectives on that level. All
  // transfers of a stream are on one level.
  bool is_busy(int level) const {
    return left_open_.contains(level) ||
           std::ranges::any_of(in_flight_, [&](const auto& open) { return open.second == level; });
  }

  // Returns the end of the longest range from `begin` that waits for all that it starts, on levels
  // that are not busy; `begin` where no range is.
  size_t closed_stretch(size_t begin) const {
    std::set<int32_t> open;
    size_t end = begin;
    for (size_t i = begin; i < steps_.size(); ++i) {
      const auto& step = steps_[i];
      if (step.kind == SimulatedStep::Kind::start) {
        const auto& link = links_[step.link];
        if (link.actors.size() > 1 || is_busy(link.level)) break;
        open.insert(step.event);
      } else if (step.kind == SimulatedStep::Kind::wait) {
        if (open.erase(step.event) == 0) break;
      }
      if (open.empty()) end = i + 1;
    }
    return end;
  }

  // Simulates the range alone. Returns false where its collectives have contention.
  bool fold_range(size_t begin, size_t end, SimulatedStep& folded) {
    std::map<int32_t, double> free, done;  // by stream; by event
    std::map<int32_t, double> work;        // by event: seconds; 0 once it has been waited for
    std::map<int, double> level_free;
    std::map<int32_t, double> busy;
    double now = 0;
    for (size_t i = begin; i < end; ++i) {
      const auto& step = steps_[i];
      if (step.kind == SimulatedStep::Kind::compute) {
        now += step.seconds;
        folded.busy += step.busy;
      } else if (step.kind == SimulatedStep::Kind::start) {
        const auto& link = links_[step.link];
        const double start = std::max(now, free[link.stream]);
        auto& level = level_free[link.level];
        if (start < level) return false;
        work[step.event] = link.seconds;
        level = free[link.stream] = done[step.event] = start + link.seconds;
        busy[link.stream] += link.seconds;
      } else {
        const double end = done[step.event];
        const double seconds = std::exchange(work[step.event], 0);
        const double held = shared_cores_ ? held_up(now, end - seconds, end, seconds) : 0;
        now = std::max(now, end) + held;
      }
    }
    folded.seconds = now;
    for (const auto& [stream, seconds] : busy) hidden[stream] += seconds;
    return true;
  }

  const std::vector<SimulatedStep>& steps_;
  const std::vector<SimulatedCollective>& links_;
  const std::set<int>& left_open_;
  const bool shared_cores_;
  std::map<int32_t, int> in_flight_;  // by event: the level of a transfer that is not folded
};

// Returns, by section, the share of steps in which it runs.
std::vector<double> shares_of_steps(const compile::Program& program) {
  std::vector<double> shares(program.sections.size(), 1);
  for (const auto& run : program.order) shares[run.section] = 1 / static_cast<double>(run.every);
  return shares;
}

// Returns the network levels of transfers for which the section that starts them does not wait:
// they may be in flight in every section.
std::set<int> levels_left_open(const RankSteps& steps) {
  std::set<int> levels;
  for (const auto& section : steps.sections) {
    std::map<int32_t, int> open;  // by event
    for (const auto& step : section) {
      if (step.kind == SimulatedStep::Kind::start) {
        open[step.event] = steps.links[step.link].level;
      } else if (step.kind == SimulatedStep::Kind::wait) {
        open.erase(step.event);
      }
    }
    for (const auto& [event, level] : open) levels.insert(level);
  }
  return levels;
}

}  // namespace

int32_t Meetings::number(const compile::Stream& stream, const std::vector<int32_t>& actors) {
  return numbers_.try_emplace({stream, actors}, static_cast<int32_t>(numbers_.size()))
      .first->second;
}

RankSteps steps_of(const Actor& actor, const std::map<int64_t, int32_t>& actor_of,
                   const mesh::Mesh& mesh, OpCosts& costs, Meetings& meetings, bool fold) {
  const auto& program = *actor.program;
  const auto shares = shares_of_steps(program);
  RankSteps steps;
  for (const auto& section : program.sections) {
    const auto count = [&, share = shares[steps.sections.size()]](cost::Time time) {
      const double seconds = share * time.seconds;
      steps.seconds += seconds;
      if (time.measured) steps.measured += seconds;
      return seconds;
    };
    std::vector<SimulatedStep> list;
    for (const auto& instruction : section.instructions) {
      SimulatedStep step{.source = &instruction};
      switch (instruction.kind) {
        case Instruction::Kind::op:
        case Instruction::Kind::load:
          step.seconds = step.busy = count(costs.op(program, instruction, actor.rank));
          break;
        case Instruction::Kind::collective: {
          const auto slowest = actor.slowest.find(program.streams[instruction.stream]);
          const auto rank = slowest == actor.slowest.end() ? actor.rank : slowest->second;
          const auto exchange = exchange_of(program, instruction, mesh, rank);
          SimulatedCollective link{.stream = instruction.stream};
          std::set<int32_t> actors;
          for (int64_t rank : exchange.ranks) actors.insert(actor_of.at(rank));
          link.actors.assign(actors.begin(), actors.end());
          link.meeting = meetings.number(exchange.stream, link.actors);
          link.level = cost::level_of(costs.cluster(), exchange.ranks);
          link.seconds = count(costs.collective(exchange));
          step.kind = SimulatedStep::Kind::start;
          step.link = static_cast<int32_t>(steps.links.size());
          step.event = instruction.event;
          steps.links.push_back(std::move(link));
          break;
        }
        case Instruction::Kind::wait:
          step.kind = SimulatedStep::Kind::wait;
          step.event = instruction.event;
          break;
      }
      list.push_back(step);
    }
    steps.sections.push_back(std::move(list));
  }
  steps.hidden.resize(steps.sections.size());
  if (!fold) return steps;
  const auto left_open = levels_left_open(steps);
  for (size_t s = 0; s < steps.sections.size(); ++s) {
    Folding folding(steps.sections[s], steps.links, left_open, costs.cluster().shared_cores);
    auto folded = folding.run();
    steps.hidden[s] = std::move(folding.hidden);
    steps.sections[s] = std::move(folded);
  }
  return steps;
}

}  // namespace perigee::simulate
