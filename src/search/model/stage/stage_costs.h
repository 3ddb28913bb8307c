// Time and memory of a stage of a pipeline, or of a part of one, by the model.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace perigee::search {

struct StageCosts {
  // Seconds of a microbatch.
  double forward = 0, backward = 0;
  double communication = 0;          // of both: collectives within layers
  double forward_communication = 0;  // of `forward`
  double weight_gradients = 0;       // of `backward`: gradients of weights
  double exchange = 0;               // of both: exposed gathering and reducing of units
  double tail = 0;                   // of `exchange`: after the last op of the backward pass

  // Seconds per step, one after the other, after the last backward pass.
  double gradient_exchange = 0;  // exposed exchange of gradients
  double norm = 0;               // squared norms of the stage's gradients
  double norm_all_reduce = 0;    // of the squared norms, over the stage's ranks
  double optimizer = 0;          // with the exposed exchange of weights

  double resident_bytes = 0;    // allocated for the whole step
  double working_bytes = 0;     // further bytes, which the parts of a stage share
  double prefetched_bytes = 0;  // of prefetched receive buffers
  double optimizer_bytes = 0;   // while the optimizer runs, with resident_bytes
  double in_flight_bytes = 0;   // of one microbatch in flight
  // Of several parts: in_flight_bytes of the first, of the last, and of the largest between them.
  double first_in_flight_bytes = 0, last_in_flight_bytes = 0, middle_in_flight_bytes = 0;
  int parts = 0;  // number of joined parts

  // Returns the seconds of a microbatch's forward and backward pass.
  double pass() const { return forward + backward; }
  // Returns the seconds from the end of the last backward pass until the all-reduce of the norm
  // over all stages can start.
  double until_global_norm() const { return gradient_exchange + norm + norm_all_reduce; }
  // Returns the bytes that do not depend on the microbatches in flight.
  double fixed_bytes() const { return resident_bytes + working_bytes; }

  // Adds a part. All parts hold as much in flight as the largest (compile/stages/frame_pools.h).
  void join(const StageCosts& part, int64_t chunks) {
    forward += part.forward;
    backward += part.backward;
    communication += part.communication;
    forward_communication += part.forward_communication;
    weight_gradients += part.weight_gradients;
    exchange += part.exchange;
    tail += part.tail;
    gradient_exchange += part.gradient_exchange;
    norm += part.norm;
    norm_all_reduce = std::max(norm_all_reduce, part.norm_all_reduce);
    optimizer += part.optimizer;
    resident_bytes += part.resident_bytes;
    working_bytes = std::max(working_bytes, part.working_bytes);
    prefetched_bytes = std::max(prefetched_bytes, part.prefetched_bytes);
    optimizer_bytes += part.optimizer_bytes;
    in_flight_bytes = std::max(in_flight_bytes, static_cast<double>(chunks) * part.in_flight_bytes);
    if (parts++ == 0) {
      first_in_flight_bytes = part.in_flight_bytes;
    } else {
      middle_in_flight_bytes = std::max(middle_in_flight_bytes,
                                        std::exchange(last_in_flight_bytes, part.in_flight_bytes));
    }
  }
};

}  // namespace perigee::search
