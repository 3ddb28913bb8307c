#include "search/pipeline.h"

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "cost/schedule_shape.h"

namespace perigee::search {
namespace {

constexpr int64_t kStagesSearched = 16;
// Orders of more microbatches for each stage repeat what is between two and so many.
constexpr int64_t kRoundsSearched = 4;

// A schedule in the unit of parts, of a pipeline whose parts are alike.
struct Alike {
  Alike(const Choice& choice, const Passes& passes)
      : stages(static_cast<double>(choice.pipe)),
        chunks(static_cast<double>(choice.chunks)),
        microbatches(static_cast<double>(choice.microbatches)),
        forward(passes.forward / (stages * chunks)),
        backward(passes.backward / (stages * chunks)),
        weights(passes.weights / (stages * chunks)),
        again(passes.again / (stages * chunks)),
        transfer(passes.transfer) {}

  double pass() const { return forward + backward + weights; }
  // From a part's forward pass to the next one's, and from a gradient to the one before it.
  double forward_hop() const { return forward + transfer; }
  double backward_hop() const { return std::max(0.0, backward - again) + transfer; }

  double stages, chunks, microbatches;
  double forward, backward, weights, again, transfer;  // of a part
};

// A stage with so many behind it waits, each time it has as many microbatches in flight as it may,
// for the messages there and back through those; the rest of a round is one of a stage nearer to
// the end. `slack`: what a microbatch takes less on the average stage than on the slowest.
double waits_of_rounds(const Choice& choice, const Alike& part, double slack) {
  const bool eager = choice.schedule == "eager_1f1b";
  double waits = 0, left = part.microbatches - 1;
  double behind = part.stages - 1;
  while (behind > 0 && left > 0) {
    const double flight = eager ? 2 * behind + 1 : behind + 1;
    const double rounds = std::floor(left / flight);
    const double wait = 2 * behind * part.transfer - (eager ? behind * part.pass() : 0);
    waits += rounds * std::max(0.0, wait);
    left -= rounds * flight;
    behind = std::min(behind - 1, std::floor(eager ? (left - 1) / 2 : left - 1));
  }
  return std::max(0.0, waits - (part.microbatches - 1) * slack);
}

// From stage to stage a forward pass has the time of a part's passes, less that of a gradient which
// goes the other way.
double waits_of_groups(const Alike& part, double slack) {
  const double wait = part.chunks * std::max(0.0, part.transfer - part.pass() / 2);
  return std::max(0.0, (part.microbatches - part.stages) * wait - (part.microbatches - 1) * slack);
}

// All microbatches run through a chunk before the next: where there are few of them, the first
// stage waits for the last.
double lost_by_breadth(const Alike& part) {
  double lost = 0;
  const auto pass = [&](double seconds, double hop) {
    lost += (part.stages - 1) * hop;
    lost += (part.chunks - 1) * std::max(0.0, part.stages * hop - part.microbatches * seconds);
  };
  pass(part.forward, part.forward_hop());
  pass(part.backward + part.weights, part.backward_hop() + part.weights);
  return lost;
}

// What no order of split backward passes is below on a stage that takes so much longer than the
// average: it cannot begin before its first microbatch comes, nor run more forward passes than
// `cap` parts in flight before its first gradient does, nor put off more weight gradients than that
// behind its last one, which goes on to the stages before; and it holds no more than `cap` for as
// long as microbatches are on their way through it and back.
double lost_on_stage(const Choice& choice, const Alike& part, double s, double longer) {
  const bool v_shape = part.chunks > 1;
  const double p = part.stages, count = part.chunks * part.microbatches;
  const double cap =
      std::floor(memory_cap(choice.schedule, static_cast<int>(choice.pipe)) * part.chunks + 1e-9);
  const double busy = count * part.pass();
  const double both = part.forward + part.backward - part.again;
  const double first = s * part.forward_hop();
  const double behind = p - 1 - s;
  const double wait = v_shape ? (2 * p - s) * part.forward + (2 * p - 2 - s) * part.transfer +
                                    s * part.backward_hop()
                              : part.forward + behind * (part.forward_hop() + part.backward_hop());
  const double head = std::max(0.0, wait - std::min(cap, count) * part.forward);
  const double tail = std::max(0.0, count - cap) * part.weights + part.weights;
  const double held = v_shape ? (2 * p + 1) * both + 4 * (p - 1) * part.transfer + 2 * part.weights
                              : (behind + 1) * both + 2 * behind * part.transfer + part.weights;
  const double run = count * (part.forward + part.backward) + tail;
  // At the cap a stage waits once for its messages, as 1f1b does in each round.
  const bool waits = choice.schedule == "zb1p" && part.microbatches > p;
  return std::max({0.0, first + head, first + run + s * part.backward_hop() - busy,
                   first + part.microbatches * held / cap - busy - longer}) +
         (waits ? 2 * (p - 1) * part.transfer : 0);
}

// Of stages that are alike. None of this is largest on a stage between the ends.
double lost_by_split(const Choice& choice, const Alike& part) {
  return std::max(lost_on_stage(choice, part, 0, 0),
                  lost_on_stage(choice, part, part.stages - 1, 0));
}

}  // namespace

double in_flight(const Choice& choice, int64_t successors) {
  const auto p = static_cast<double>(choice.pipe), v = static_cast<double>(choice.chunks);
  const auto s = static_cast<double>(successors);
  const double microbatches = static_cast<double>(choice.microbatches);
  if (choice.pipe == 1) return 1;
  if (choice.schedule == "gpipe" || choice.schedule == "looped_bfs") return microbatches;
  // Parts share room for one more than are in flight (compile/frame_pools.h).
  const double more = v > 1 ? 1 / v : 0;
  if (splits_backward(choice.schedule)) {
    return std::min(microbatches,
                    memory_cap(choice.schedule, static_cast<int>(choice.pipe)) + more);
  }
  if (v > 1) return std::min(microbatches, ((v - 1) * p + 2 * s + 1) / v + more);
  return std::min(microbatches, choice.schedule == "eager_1f1b" ? 2 * s + 1 : s + 1);
}

std::pair<double, double> in_flight_at_first(const Choice& choice) {
  const auto microbatches = static_cast<double>(choice.microbatches);
  const double all = 2 * memory_cap(choice.schedule, static_cast<int>(choice.pipe));
  const double next = choice.schedule == "dualpipe_v" ? 3 : 2;
  return {std::min(microbatches, all), std::min(microbatches, next)};
}

double lost(const Choice& choice, const Passes& passes, double sum, const Longest& longest,
            double excess) {
  if (choice.pipe == 1) return 0;
  const Alike part(choice, passes);
  const double slack = std::max(0.0, longest.seconds - part.chunks * part.pass());
  if (splits_backward(choice.schedule)) {
    const double alike = lost_by_split(choice, part) + excess;
    if (choice.chunks == 1) return alike;
    // With several parts, what the others wait for ends while the longest still computes.
    const double longer = part.microbatches * slack;
    const auto own = [&](double s) { return lost_on_stage(choice, part, s, longer); };
    const double least = longest.stage ? own(static_cast<double>(*longest.stage))
                                       : std::min(own(0), own(part.stages - 1));
    return std::max(least, alike - longer);
  }
  if (choice.schedule == "looped_bfs") return lost_by_breadth(part);
  const double ends =
      std::max(0.0, (sum - longest.seconds) / part.chunks - (part.stages - 1) * part.again) +
      2 * (part.stages * part.chunks - 1) * part.transfer;
  if (choice.schedule == "gpipe") return ends;
  return ends + (choice.schedule == "interleaved" ? waits_of_groups(part, slack)
                                                  : waits_of_rounds(choice, part, slack));
}

void SearchedOrders::find(const Choice& choice, const std::vector<double>& costs,
                          const std::vector<int64_t>& microbatches) {
  std::vector<std::pair<ScheduleOptions, Schedule*>> missing;
  for (const auto count : microbatches) {
    auto& orders = known_[{choice.schedule, choice.pipe, count, costs}];
    if (!orders.orders.empty()) continue;
    ScheduleOptions options{.name = choice.schedule,
                            .stages = static_cast<int>(choice.pipe),
                            .microbatches = static_cast<int>(count)};
    options.forward = costs[0];
    options.backward = costs[1];
    options.wgrad = costs[2];
    options.transfer = costs[3];
    missing.emplace_back(options, &orders);
  }
  in_parallel(missing.size(),
              [&](size_t k) { *missing[k].second = make_schedule(missing[k].first); });
}

double SearchedOrders::excess_of(const Choice& choice, const Passes& passes,
                                 const std::vector<double>& costs) const {
  const auto& orders = known_.at({choice.schedule, choice.pipe, choice.microbatches, costs});
  const Alike part(choice, passes);
  const schedule::Shape shape{.stages = static_cast<int>(choice.pipe),
                              .microbatches = static_cast<int>(choice.microbatches),
                              .chunks = orders.chunks,
                              .v_shape = true,
                              .forward = part.forward,
                              .backward = part.backward,
                              .wgrad = part.weights,
                              .transfer = part.transfer};
  const double found = schedule::earliest_start(shape, orders.orders).makespan;
  return std::max(0.0, found - shape.busy() - lost_by_split(choice, part));
}

double SearchedOrders::excess(const Choice& choice, const Passes& passes,
                              const std::vector<double>& costs) {
  const auto& name = choice.schedule;
  if (choice.pipe == 1 || (name != "zbv" && name != "v_half" && name != "v_min")) return 0;
  auto fewer = choice;
  auto part = passes;
  part.again = 0;  // hidden beside either
  fewer.pipe = std::min(choice.pipe, kStagesSearched);
  const double share = static_cast<double>(fewer.pipe) / static_cast<double>(choice.pipe);
  for (double* seconds : {&part.forward, &part.backward, &part.weights}) *seconds *= share;
  const auto wanted = std::max<int64_t>(1, std::llround(share * double(choice.microbatches)));
  const auto with = [&](int64_t microbatches) {
    fewer.microbatches = microbatches;
    return excess_of(fewer, part, costs);
  };
  const auto most = kRoundsSearched * fewer.pipe;
  find(fewer, costs, wanted <= most ? std::vector{wanted} : std::vector{most / 2, most});
  if (wanted <= most) return with(wanted) / share;
  const double few = with(most / 2), many = with(most);
  const double each = std::max(0.0, many - few) / static_cast<double>(most - most / 2);
  return (many + each * static_cast<double>(wanted - most)) / share;
}

}  // namespace perigee::search
