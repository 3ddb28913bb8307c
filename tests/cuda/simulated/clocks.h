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
  // This thread finds that the event has passed. What it accesses itself then comes after; work that
  // it submits does not count as ordered, since the answer depends on the order of the work.
  void host_polls(const EventState& event);
  void host_waits(const StreamState& stream);
  void host_accesses(const Accesses& accesses, const std::string& name);
  // Memory that is allocated or freed: CUDA waits for all accesses to it.
  void forget(const void* begin, size_t size);

  const std::set<std::string>& races() const { return races_; }

 private:
  struct Access {
    const void* actor = nullptr;  // nullptr: none
    int64_t time = 0;
    int name = 0;  // index of names_
  };
  // Bytes with one history: the last write, and the later reads that precede no other read.
  struct Segment {
    const char* end = nullptr;
    Access write;
    std::vector<Access> reads;
  };
  // Host memory that an upload of this thread reads.
  struct Source {
    const void* host;  // the thread
    const void* stream;
    int64_t time = 0;
    Bytes bytes;
    std::vector<char> content;
  };

  void access(const Bytes& bytes, bool write, const Access& access, const VectorClock& before);
  // Cuts segments at an address.
  void cut(const char* at);
  void conflict(const Access& access, bool write, const Access& other, bool other_writes,
                const VectorClock& before);
  void check_sources(const void* host);
  VectorClock& host_clock();
  // Returns this thread's clock with all that it has found passed.
  VectorClock known_to_host(const void* host);
  int name_of(const std::string& name);

  std::map<const void*, VectorClock> actors_, events_;
  std::map<const void*, VectorClock> polled_;  // by thread
  std::map<const char*, Segment> segments_;    // by first byte; they do not overlap
  std::vector<std::string> names_;
  std::map<std::string, int> known_;  // the index of a name
  std::vector<Source> sources_;
  std::set<std::string> races_;
};

}  // namespace perigee::cuda::simulated
