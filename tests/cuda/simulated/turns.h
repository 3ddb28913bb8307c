// Threads of ranks that take turns on the simulated machine: one thread runs at a time, and at each
// call the seed chooses who goes on and how much work the GPUs do meanwhile. A seed thus repeats its
// run. Where every thread waits and no stream can go on, the waits fail at once with the cycle.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/calls.h"

namespace perigee::cuda::simulated {

// Work and waits of this thread until the next label are of `what` ("comm::all_reduce ..."), and of
// the stream named so where it is not the compute stream.
struct Label {
  std::string what;
  std::string stream;
};
void set_label(Label label);
// Returns this thread's `what`.
std::string label();

// Names a stream in messages: "rank 1's compute stream".
void name_stream(cudaStream_t stream, const std::string& name);

// This thread takes part from the moment at which `count` threads have one, until it is dropped.
// Meanwhile it waits for nothing but the machine. Throws std::logic_error where not all take part
// within 20 s.
class Turn {
 public:
  Turn(int rank, int count);
  ~Turn();
  Turn(const Turn&) = delete;
};

// Returns a number that identifies the order in which work has run since the threads take turns.
uint64_t order_of_work();

// Returns the cycle of the deadlock that was found since restart(), or "".
std::string deadlock();

}  // namespace perigee::cuda::simulated
