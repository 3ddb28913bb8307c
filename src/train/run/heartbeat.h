// Notices that the process stood still: stopped by a signal, swapped out, or its host paused.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace perigee::train {

// A thread that wakes up ten times a second. Seconds in which it could not are a pause.
class Heartbeat {
 public:
  Heartbeat();
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // Returns the longest time between two beats since the last call, less their interval, in
  // nanoseconds. A pause that has just ended counts although no beat has followed it.
  int64_t take_longest_pause();

 private:
  using Clock = std::chrono::steady_clock;
  void note(Clock::time_point now);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  Clock::time_point last_;
  int64_t longest_ = 0;
  std::thread thread_;
};

}  // namespace perigee::train
