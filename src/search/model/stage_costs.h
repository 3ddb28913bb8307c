// Time and memory of a stage of a pipeline, or of a part of one, by the model. Seconds, bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace perigee::search {

struct StageCosts {
  double forward = 0, backward = 0, tensor = 0;  // a microbatch
  double forward_tensor = 0;                     // of tensor: in the forward pass
  double gradient = 0;                           // of backward: gradients of weights
  double exchange = 0;    // of both passes: exposed gathering and reducing of units
  double tail = 0;        // of exchange: after the last op of the backward pass
  double once = 0;        // per step: exposed exchange of gradients
  double norm = 0;        // per step, after that: norm of its gradients
  double meets = 0;       // per step, after that: all-reduce of the norm
  double optimizer = 0;   // per step, after that: with exposed exchange of weights
  double resident = 0;    // bytes that are allocated for the whole step
  double working = 0;     // further bytes, which the parts of a stage share
  double prefetched = 0;  // bytes of prefetched receive buffers
  double step = 0;        // bytes while the optimizer runs
  double flight = 0;      // bytes of one microbatch in flight
  // Of several parts: `flight` of the first, of the last, and of the largest between them.
  double first = 0, last = 0, middle = 0;
  int parts = 0;  // number of joined parts

  double pass() const { return forward + backward; }
  double ready() const { return once + norm + meets; }  // until the all-reduce over all stages
  double fixed() const { return resident + working; }

  // Adds a part. All parts hold as much in flight as the largest (compile/stages/frame_pools.h).
  void join(const StageCosts& part, int64_t chunks) {
    forward += part.forward;
    backward += part.backward;
    tensor += part.tensor;
    forward_tensor += part.forward_tensor;
    gradient += part.gradient;
    exchange += part.exchange;
    tail += part.tail;
    once += part.once;
    norm += part.norm;
    meets = std::max(meets, part.meets);
    optimizer += part.optimizer;
    resident += part.resident;
    working = std::max(working, part.working);
    prefetched = std::max(prefetched, part.prefetched);
    step += part.step;
    flight = std::max(flight, static_cast<double>(chunks) * part.flight);
    if (parts++ == 0) {
      first = part.flight;
    } else {
      middle = std::max(middle, std::exchange(last, part.flight));
    }
  }
};

}  // namespace perigee::search
