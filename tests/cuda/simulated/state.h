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
struct Capture;

// Submits one piece of work to a stream. Work of a graph is submitted again by each launch.
using Submission = std::function<void(StreamState& on)>;

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
  std::shared_ptr<Capture> capture = {};  // that it is part of
};

struct EventState {
  int device = 0;
  bool timed = false;
  int64_t recorded = 0, passed = 0;  // numbers of records submitted, and run
  double time = 0;                   // milliseconds
  const StreamState* on = nullptr;   // of the last record
  std::string after = {};            // the label at the last record
  // Of an event that was last recorded in a capture: the capture, while it or its graph exists, the
  // event that stands for it in the graph, and the submissions before it.
  std::weak_ptr<Capture> capture = {};
  EventState* in_graph = nullptr;
  std::map<const StreamState*, int64_t> seen = {};
};

// The work that is submitted while streams are captured (graphs.cc).
struct Capture {
  struct Node {
    StreamState* on;
    Label label;
    Submission submit;
  };
  StreamState* origin = nullptr;
  std::vector<StreamState*> streams;  // by the first call that joins them
  std::vector<Node> nodes;
  // By stream: how many submissions of each stream come before its next one.
  std::map<const StreamState*, std::map<const StreamState*, int64_t>> seen;
  bool ended = false, broken = false;
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
  // Calls `submission` for the stream, or adds it to the stream's capture.
  void submit(StreamState& stream, Submission submission);
  void record_on(EventState& event, StreamState& stream);
  void wait_on(StreamState& stream, EventState& event);
  // Runs up to `most` pieces of work that are ready; returns how many ran.
  int64_t run_some(int64_t most);
  // Notes a broken rule and returns `result`.
  template <class Result>
  Result refuse(const std::string& rule, Result result) {
    broken.push_back(rule);
    return result;
  }

  // ---- graphs.cc

  // Returns whether the event's record or the wait for it belongs to a capture; it then has been
  // added, or `result` is an error.
  bool capture_record(EventState& event, StreamState& stream);
  bool capture_wait(StreamState& stream, EventState& event, cudaError_t& result);
  // Refuses a call that a thread must not make while it captures; returns whether it does.
  bool refuses_in_capture(const std::string& call);

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

// Returns the label of this thread.
Label label_of_thread();
// Returns the label of this thread (turns.h), or `otherwise`.
std::string label_or(const char* otherwise);
// Gives a stream the name that this thread's label has for it.
void name_by_label(StreamState& stream);

// Adds NCCL's functions to a table, and those of graphs.
void add_nccl(Calls& table);
void add_graphs(Calls& table);

// Forgets all communicators.
void restart_nccl();

}  // namespace perigee::cuda::simulated
