#include "tests/cuda/simulated/clocks.h"

#include <algorithm>
#include <cstring>

namespace perigee::cuda::simulated {
namespace {

// A thread's address as an actor.
const void* this_host() {
  static thread_local const char host = 0;
  return &host;
}

void join(VectorClock& into, const VectorClock& other) {
  for (const auto& [actor, time] : other) into[actor] = std::max(into[actor], time);
}

bool before(const void* actor, int64_t time, const VectorClock& clock) {
  const auto found = clock.find(actor);
  return found != clock.end() && found->second >= time;
}

bool overlap(const Bytes& a, const Bytes& b) {
  const auto *first = static_cast<const char*>(a.begin),
             *second = static_cast<const char*>(b.begin);
  return first < second + b.size && second < first + a.size;
}

bool covers(const Bytes& a, const Bytes& b) {
  const auto *first = static_cast<const char*>(a.begin),
             *second = static_cast<const char*>(b.begin);
  return first <= second && second + b.size <= first + a.size;
}

}  // namespace

VectorClock& Clocks::host_clock() {
  auto& clock = actors_[this_host()];
  check_sources(this_host());
  return clock;
}

void Clocks::submitted(const StreamState& stream, const std::string& name, const Accesses& accesses,
                       bool upload) {
  const auto& host = host_clock();
  auto& clock = actors_[&stream];
  join(clock, host);
  const int64_t time = ++clock[&stream];
  const auto seen = clock;
  for (const auto& bytes : accesses.reads) access({bytes, false, &stream, time, name}, seen);
  for (const auto& bytes : accesses.writes) access({bytes, true, &stream, time, name}, seen);
  if (!upload) return;
  for (const auto& bytes : accesses.reads) {
    const auto* from = static_cast<const char*>(bytes.begin);
    sources_.push_back({this_host(), &stream, time, bytes, {from, from + bytes.size}});
  }
}

void Clocks::recorded(const EventState& event, const StreamState& stream) {
  auto& clock = actors_[&stream];
  join(clock, host_clock());
  events_[&event] = clock;
}

void Clocks::waits(const StreamState& stream, const EventState& event) {
  host_clock();
  join(actors_[&stream], events_[&event]);
}

void Clocks::host_waits(const EventState& event) {
  join(actors_[this_host()], events_[&event]);
  host_clock();
}

void Clocks::host_waits(const StreamState& stream) {
  join(actors_[this_host()], actors_[&stream]);
  host_clock();
}

void Clocks::host_accesses(const Accesses& accesses) {
  auto& clock = host_clock();
  const int64_t time = ++clock[this_host()];
  const auto seen = clock;
  for (const auto& bytes : accesses.reads)
    access({bytes, false, this_host(), time, "the host"}, seen);
  for (const auto& bytes : accesses.writes)
    access({bytes, true, this_host(), time, "the host"}, seen);
}

void Clocks::forget(const void* begin, size_t size) {
  const auto gone = [&](const auto& known) { return overlap(known.bytes, {begin, size}); };
  std::erase_if(accesses_, gone);
  std::erase_if(sources_, gone);
}

void Clocks::access(const Access& access, const VectorClock& seen) {
  if (access.bytes.size == 0) return;
  std::erase_if(accesses_, [&](const Access& other) {
    if (!overlap(other.bytes, access.bytes)) return false;
    if (other.actor == access.actor && other.time == access.time) return false;  // the same work
    if (before(other.actor, other.time, seen)) {
      return access.write && covers(access.bytes, other.bytes);  // later ones need only this one
    }
    if (access.write || other.write) {
      races_.insert(access.name + (access.write ? " writes" : " reads") + " what " + other.name +
                    (other.write ? " writes" : " reads"));
    }
    return false;
  });
  accesses_.push_back(access);
}

void Clocks::check_sources(const void* host) {
  const auto& clock = actors_[host];
  std::erase_if(sources_, [&](const Source& source) {
    if (source.host != host) return false;
    if (before(source.stream, source.time, clock)) return true;
    if (std::memcmp(source.bytes.begin, source.content.data(), source.content.size()) != 0) {
      races_.insert("the host writes what a copy reads");
      return true;
    }
    return false;
  });
}

}  // namespace perigee::cuda::simulated
