// The collectives of a recorded step, of which the host may ask how far a launch has got.
#pragma once

#include <list>
#include <string>
#include <utility>

#include "cuda/handles.h"

namespace perigee::cuda {

class RecordedCollectives {
 public:
  explicit RecordedCollectives(int device)
      : device_(device), stream_(device, Stream::Priority::low), begun_(device, /*timed=*/true) {}

  // Called while the step is recorded, where it waits for a collective that ends at the event: each
  // launch records an event of its own after that, on a stream that no work of the step waits for.
  void add(std::string name, const Event& ended);
  // Called before the recording ends: the stream from which it began waits for that stream.
  void join(cudaStream_t stream);

  // Called before each launch on the stream.
  void begin(cudaStream_t stream);
  // Returns the name of the first collective that the last launch has not ended, in the order of
  // add(), or "" where it has ended all.
  std::string unfinished() const;

 private:
  struct Collective {
    Collective(std::string name, int device)
        : name(std::move(name)), ended(device, /*timed=*/true) {}
    std::string name;
    Event ended;
  };

  int device_;
  Stream stream_;
  Event begun_;  // the last launch
  std::list<Collective> list_;
  bool launched_ = false;
};

}  // namespace perigee::cuda
