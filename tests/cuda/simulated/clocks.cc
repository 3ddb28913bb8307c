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
  for (const auto& [actor, time] : other) {
    auto& own = into[actor];
    own = std::max(own, time);
  }
}

bool before(const void* actor, int64_t time, const VectorClock& clock) {
  const auto found = clock.find(actor);
  return found != clock.end() && found->second >= time;
}

}  // namespace

VectorClock& Clocks::host_clock() {
  auto& clock = actors_[this_host()];
  check_sources(this_host());
  return clock;
}

int Clocks::name_of(const std::string& name) {
  const auto [at, added] = known_.try_emplace(name, static_cast<int>(names_.size()));
  if (added) names_.push_back(name);
  return at->second;
}

void Clocks::submitted(const StreamState& stream, const std::string& name, const Accesses& accesses,
                       bool upload) {
  const auto& host = host_clock();
  auto& clock = actors_[&stream];
  join(clock, host);
  const Access own{&stream, ++clock[&stream], name_of(name)};
  for (const auto& bytes : accesses.reads) access(bytes, false, own, clock);
  for (const auto& bytes : accesses.writes) access(bytes, true, own, clock);
  if (!upload) return;
  for (const auto& bytes : accesses.reads) {
    const auto* from = static_cast<const char*>(bytes.begin);
    sources_.push_back({this_host(), &stream, own.time, bytes, {from, from + bytes.size}});
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

void Clocks::host_polls(const EventState& event) {
  join(polled_[this_host()], events_[&event]);
  host_clock();
}

VectorClock Clocks::known_to_host(const void* host) {
  auto known = actors_[host];
  join(known, polled_[host]);
  return known;
}

void Clocks::host_waits(const StreamState& stream) {
  join(actors_[this_host()], actors_[&stream]);
  host_clock();
}

void Clocks::host_accesses(const Accesses& accesses, const std::string& name) {
  auto& clock = host_clock();
  const Access own{this_host(), ++clock[this_host()], name_of(name)};
  const auto known = known_to_host(this_host());
  for (const auto& bytes : accesses.reads) access(bytes, false, own, known);
  for (const auto& bytes : accesses.writes) access(bytes, true, own, known);
}

void Clocks::cut(const char* at) {
  auto found = segments_.upper_bound(at);
  if (found == segments_.begin()) return;
  --found;
  if (found->first == at || found->second.end <= at) return;
  auto rest = found->second;
  found->second.end = at;
  segments_.emplace_hint(std::next(found), at, std::move(rest));
}

void Clocks::forget(const void* begin, size_t size) {
  const auto *first = static_cast<const char*>(begin), *end = first + size;
  cut(first);
  cut(end);
  segments_.erase(segments_.lower_bound(first), segments_.lower_bound(end));
  std::erase_if(sources_, [&](const Source& source) {
    const auto* from = static_cast<const char*>(source.bytes.begin);
    return from < end && first < from + source.bytes.size;
  });
}

void Clocks::conflict(const Access& access, bool write, const Access& other, bool other_writes,
                      const VectorClock& seen) {
  const bool same = other.actor == access.actor && other.time == access.time;
  if (!other.actor || same || before(other.actor, other.time, seen)) return;
  races_.insert(names_[access.name] + (write ? " writes" : " reads") + " what " +
                names_[other.name] + (other_writes ? " writes" : " reads"));
}

void Clocks::access(const Bytes& bytes, bool write, const Access& access, const VectorClock& seen) {
  if (bytes.size == 0) return;
  const auto *at = static_cast<const char*>(bytes.begin), *end = at + bytes.size;
  cut(at);
  cut(end);
  auto next = segments_.lower_bound(at);
  while (at < end) {
    if (next == segments_.end() || next->first > at) {
      const auto* until = next == segments_.end() ? end : std::min(end, next->first);
      next = segments_.emplace_hint(next, at, Segment{until, {}, {}});
    }
    auto& segment = next->second;
    conflict(access, write, segment.write, true, seen);
    if (write) {
      for (const auto& read : segment.reads) conflict(access, true, read, false, seen);
      segment.write = access;
      segment.reads.clear();
    } else {
      std::erase_if(segment.reads,
                    [&](const Access& read) { return before(read.actor, read.time, seen); });
      segment.reads.push_back(access);
    }
    at = segment.end;
    ++next;
  }
}

void Clocks::check_sources(const void* host) {
  if (sources_.empty()) return;
  const auto clock = known_to_host(host);
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
