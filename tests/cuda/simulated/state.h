// The state of the simulated machine, shared by its runtime (runtime.cc), NCCL (nccl.cc) and the
// turns of threads (turns.cc).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "cuda/calls.h"
#include "tests/cuda/simulated/clocks.h"
#include "tests/cuda/simulated/turns.h"

namespace perigee::cuda::simulated {

using Lock = std::unique_lock<std::mutex>;

struct StreamState;

// What a stream or a thread waits for: other streams, and threads that have not submitted the work.
struct Wait {
  std::string what;  // "an event after comm::all_reduce ..."
  std::vector<const StreamState*> streams;
  std::vector<int> ranks;
};

struct Op {
  std::function<bool()> ready;  // asked with the lock held, possibly often
  std::function<void()> run;
  std::function<Wait()> wait;  // asked while it is not ready
  std::string what = {};       // the label of its thread
};

struct StreamState {
  int device = 0;
  std::deque<Op> queue;
  std::string name = {};
  int64_t order = 0;    // among the streams of its device since restart(), by first use
  unsigned weight = 1;  // the larger, the sooner its work runs
};

struct EventState {
  int device = 0;
  bool timed = false;
  int64_t recorded = 0, passed = 0;  // numbers of records submitted, and run
  double time = 0;                   // milliseconds
  const StreamState* on = nullptr;   // of the last record
  std::string after = {};            // the label at the last record
};

// The threads that take turns.
struct Turns {
  std::vector<int> live;  // ranks, sorted
  int expected = 0, current = -1;
  bool open = false;                        // all take part
  int64_t idle = 0;                         // waits in a row in which nothing could go on
  std::map<int, const EventState*> polled;  // by rank: the event that it has asked for last
  std::map<int, Wait> waits;                // by rank: its last wait, until it goes on
  std::map<int, std::string> labels;
  std::string deadlock;
};

struct Machine {
  std::mutex mutex;
  std::condition_variable changed;
  std::mt19937_64 random;
  uint64_t seed = 0;
  std::vector<std::unique_ptr<StreamState>> streams;  // the first kDevices: the default streams
  std::vector<std::unique_ptr<EventState>> events;
  std::map<const void*, int> memory;     // device by address
  std::map<const void*, size_t> pinned;  // bytes by address
  std::vector<std::string> broken;
  Clocks clocks;
  double clock = 0;    // milliseconds
  uint64_t order = 0;  // a hash of the streams whose work has run, in order
  Turns turns;

  StreamState& stream(cudaStream_t handle);  // nullptr: the current device's default stream
  void push(StreamState& stream, Op op);
  void push(StreamState& stream, std::function<void()> run) {
    push(stream, Op{[] { return true; }, std::move(run), {}});
  }
  // Runs up to `most` pieces of work that are ready; returns how many ran.
  int64_t run_some(int64_t most);
  // Notes a broken rule and returns `result`.
  template <class Result>
  Result refuse(const std::string& rule, Result result) {
    broken.push_back(rule);
    return result;
  }

  // ---- turns.cc; without turns they do nothing

  // Whether this thread takes turns.
  bool in_turns() const;
  // Called after a submission: lets work or other threads go on, as the seed says.
  void submitted(Lock& lock);
  // Runs work, and lets other threads go on, because this one waits. Returns false where all wait
  // for each other.
  bool wait_a_turn(Lock& lock, const Wait& wait);
  // Called by a thread that asks whether an event has passed. Returns as wait_a_turn.
  bool poll(Lock& lock, const EventState& event);
  // Returns the wait for an event.
  Wait wait_of(const EventState& event) const;
};

Machine& machine();

// Returns the label of this thread (turns.h), or `otherwise`.
std::string label_or(const char* otherwise);
// Gives a stream the name that this thread's label has for it.
void name_by_label(StreamState& stream);

// Adds NCCL's functions to a table.
void add_nccl(Calls& table);

// Forgets all communicators.
void restart_nccl();

}  // namespace perigee::cuda::simulated
