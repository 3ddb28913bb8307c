// The state of the simulated machine, shared by its runtime (runtime.cc) and NCCL (nccl.cc).
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

namespace perigee::cuda::simulated {

struct Op {
  std::function<bool()> ready;  // asked with the lock held, possibly often
  std::function<void()> run;
};

struct StreamState {
  int device = 0;
  std::deque<Op> queue;
};

struct EventState {
  int device = 0;
  bool timed = false;
  int64_t recorded = 0, passed = 0;  // numbers of records submitted, and run
  double time = 0;                   // milliseconds
};

struct Machine {
  std::mutex mutex;
  std::condition_variable changed;
  std::mt19937_64 random;
  std::vector<std::unique_ptr<StreamState>> streams;  // the first kDevices: the default streams
  std::vector<std::unique_ptr<EventState>> events;
  std::map<const void*, int> memory;     // device by address
  std::map<const void*, size_t> pinned;  // bytes by address
  std::vector<std::string> broken;
  Clocks clocks;
  double clock = 0;  // milliseconds

  StreamState& stream(cudaStream_t handle);  // nullptr: the current device's default stream
  void push(StreamState& stream, Op op) { stream.queue.push_back(std::move(op)); }
  void push(StreamState& stream, std::function<void()> run) {
    push(stream, Op{[] { return true; }, std::move(run)});
  }
  // Runs up to `most` pieces of work that are ready; returns how many ran.
  int64_t run_some(int64_t most);
  // Notes a broken rule and returns `result`.
  template <class Result>
  Result refuse(const std::string& rule, Result result) {
    broken.push_back(rule);
    return result;
  }
};

Machine& machine();

// Adds NCCL's functions to a table.
void add_nccl(Calls& table);

// Forgets all communicators.
void restart_nccl();

}  // namespace perigee::cuda::simulated
