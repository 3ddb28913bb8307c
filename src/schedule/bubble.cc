#include "schedule/bubble.h"

#include <algorithm>
#include <cmath>

namespace perigee::schedule {
namespace {

// Returns the seconds that stages wait for messages. A stage that has its maximum of microbatches
// in flight waits for the messages through all later stages and back; the other waits of such a
// round belong to a later stage.
double message_waits(const PipelineTimes& times, int slope) {
  double waits = 0, left = times.microbatches - 1;
  double later = times.stages - 1;
  while (later > 0 && left > 0) {
    const double flight = slope * later + 1;
    const double rounds = std::floor(left / flight);
    const double wait = 2 * later * times.transfer - (slope - 1) * later * times.pass();
    waits += rounds * std::max(0.0, wait);
    left -= rounds * flight;
    later = std::min(later - 1, std::floor((left - 1) / slope));
  }
  return std::max(0.0, waits - (times.microbatches - 1) * times.slack());
}

// Returns the bubble of split backward passes on `stage`, which takes `longer` seconds per step
// more than the average. The stage cannot start before its first microbatch arrives, nor run more
// forward passes than `cap` parts in flight before its first gradient arrives, nor defer more
// weight gradients than that beyond its last input gradient, which the earlier stages wait for; and
// it has no more than `cap` in flight while microbatches are on their way through later parts
// and back.
double split_bubble_on(const PipelineTimes& times, double cap, bool waits_at_cap, double stage,
                       double longer) {
  const bool v_shape = times.chunks > 1;
  const double p = times.stages, count = times.chunks * times.microbatches;
  const double busy = count * times.pass();
  const double both = times.forward + times.backward - times.recomputed;
  const double first = stage * times.forward_hop();
  const double later = p - 1 - stage;
  const double wait = v_shape
                          ? (2 * p - stage) * times.forward + (2 * p - 2 - stage) * times.transfer +
                                stage * times.backward_hop()
                          : times.forward + later * (times.forward_hop() + times.backward_hop());
  const double head = std::max(0.0, wait - std::min(cap, count) * times.forward);
  const double tail = std::max(0.0, count - cap) * times.weights + times.weights;
  const double held = v_shape
                          ? (2 * p + 1) * both + 4 * (p - 1) * times.transfer + 2 * times.weights
                          : (later + 1) * both + 2 * later * times.transfer + times.weights;
  const double run = count * (times.forward + times.backward) + tail;
  // With one part a stage, a microbatch begins when the one before it by `cap` has ended.
  const double rounds = v_shape ? times.microbatches / cap : std::ceil(times.microbatches / cap);
  // A wait for messages at the cap is shorter where weight gradients fill it.
  const bool waits = waits_at_cap && times.microbatches > p;
  const double filled = std::min(times.microbatches, p) * times.weights;
  const double wait_at_cap = waits ? std::max(0.0, 2 * (p - 1) * times.transfer - filled) : 0;
  const double busiest = std::max(
      {0.0, first + head, first + run + stage * times.backward_hop() - busy});
  return std::max(busiest + wait_at_cap, first + rounds * held - busy - longer);
}

}  // namespace

double fill_and_drain_bubble(const PipelineTimes& times) {
  return std::max(0.0, (times.all_stages - times.slowest) / times.chunks -
                           (times.stages - 1) * times.recomputed) +
         2 * (times.stages * times.chunks - 1) * times.transfer;
}

double warm_up_bubble(const PipelineTimes& times, int flight_slope) {
  return fill_and_drain_bubble(times) + message_waits(times, flight_slope);
}

double interleaved_bubble(const PipelineTimes& times) {
  // A forward message is hidden by half of a part's passes, since the gradient in the other
  // direction is hidden by the other half. With longer ones the first stage waits where it has its
  // maximum in flight: a chunk, from its forward pass to its gradient's, waits for the messages of
  // all later parts.
  const double p = times.stages, chunks = times.chunks;
  const double fill = fill_and_drain_bubble(times);
  if (2 * times.transfer <= times.pass()) return fill;
  double held = p * chunks * (times.pass() - times.recomputed);
  for (double chunk = 0; chunk < chunks; ++chunk) {
    held += 2 * (p * (chunks - chunk) - 1) * times.transfer;
  }
  const double most = (chunks - 1) * p + 2 * (p - 1) + 1;
  return std::max(fill, times.microbatches * (held / most - times.slowest));
}

double looped_bfs_bubble(const PipelineTimes& times) {
  // All microbatches run through a chunk before the next one: with few of them the first stage
  // waits for the last.
  double bubble = 0;
  const auto pass = [&](double seconds, double hop) {
    bubble += (times.stages - 1) * hop;
    bubble += (times.chunks - 1) * std::max(0.0, times.stages * hop - times.microbatches * seconds);
  };
  pass(times.forward, times.forward_hop());
  pass(times.backward + times.weights, times.backward_hop() + times.weights);
  return bubble;
}

double split_bubble(const PipelineTimes& times, double cap, bool waits_at_cap) {
  const double parts = std::floor(cap * times.chunks + 1e-9);
  const auto on = [&](double stage, double longer) {
    return split_bubble_on(times, parts, waits_at_cap, stage, longer);
  };
  // Of identical stages, the first or the last has the largest bubble.
  const double last = times.stages - 1;
  const double identical = std::max(on(0, 0), on(last, 0)) + times.search_excess;
  if (times.chunks == 1) return identical;
  // With several parts per stage, the other stages' waits end while the slowest still computes.
  // Each term of the bubble grows with the stage: an unknown slowest one has at least the first's.
  const double longer = times.microbatches * times.slack();
  const double own = on(times.slowest_stage.value_or(0), longer);
  return std::max(own, identical - longer);
}

}  // namespace perigee::schedule
