// What a stage of a pipeline, or a part of one, costs by the model.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace perigee::search {

struct StageCosts {
  double forward = 0, backward = 0, tensor = 0;  // a microbatch
  double forward_tensor = 0;                     // of tensor: in the forward pass
  double gradient = 0;                           // of backward: what only gradients of weights need
  double exchange = 0;   // of both passes: what shows of gathering and reducing units
  double tail = 0;       // of exchange: behind the last op of the backward pass
  double once = 0;       // a step: what shows of gradients' exchange
  double norm = 0;       // a step, behind that: of its gradients
  double meets = 0;      // a step, behind that: its ranks add it up
  double optimizer = 0;  // a step, behind that: with what shows of weights' exchange
  double resident = 0;   // bytes that stay
  double working = 0;    // bytes beside, which the parts of a stage share
  double landed = 0;     // bytes of messages that come before they are wanted
  double step = 0;       // bytes while the optimizer steps
  double flight = 0;     // bytes of one microbatch in flight
  // Of several parts: the same of the first, of the last, and of the largest between them.
  double first = 0, last = 0, middle = 0;
  int parts = 0;  // so many have joined

  double pass() const { return forward + backward; }
  double ready() const { return once + norm + meets; }  // until all stages meet
  double fixed() const { return resident + working; }

  // Adds a part. All parts hold as much in flight as the largest (compile/frame_pools.h).
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
    landed = std::max(landed, part.landed);
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
