// Vector clocks of streams, events and host threads, behind races.h. Its functions are called with
// the machine's lock held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/cuda/simulated/races.h"

namespace perigee::cuda::simulated {

struct StreamState;
struct EventState;

// Number of the last moment of each actor (a stream or a host thread) that came before.
using VectorClock = std::map<const void*, int64_t>;

class Clocks {
 public:
  void clear() { *this = {}; }

  // This thread submits the work `name`. `upload`: it reads host memory, which must not change
  // until the host has waited for it.
  void submitted(const StreamState& stream, const std::string& name, const Accesses& accesses,
                 bool upload = false);
  void recorded(const EventState& event, const StreamState& stream);
  void waits(const StreamState& stream, const EventState& event);
  // This thread waits for the event, or for all work of the stream.
  void host_waits(const EventState& event);
  void host_waits(const StreamState& stream);
  void host_accesses(const Accesses& accesses);
  // Memory that is allocated or freed: CUDA waits for all accesses to it.
  void forget(const void* begin, size_t size);

  const std::set<std::string>& races() const { return races_; }

 private:
  struct Access {
    Bytes bytes;
    bool write = false;
    const void* actor = nullptr;
    int64_t time = 0;
    std::string name;
  };
  // Host memory that an upload of this thread reads.
  struct Source {
    const void* host;  // the thread
    const void* stream;
    int64_t time = 0;
    Bytes bytes;
    std::vector<char> content;
  };

  void access(const Access& access, const VectorClock& before);
  void check_sources(const void* host);
  VectorClock& host_clock();

  std::map<const void*, VectorClock> actors_, events_;
  std::vector<Access> accesses_;
  std::vector<Source> sources_;
  std::set<std::string> races_;
};

}  // namespace perigee::cuda::simulated
