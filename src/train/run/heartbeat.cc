#include "train/run/heartbeat.h"

#include <algorithm>
#include <utility>

namespace perigee::train {
namespace {

constexpr std::chrono::milliseconds kInterval(100);

}  // namespace

Heartbeat::Heartbeat() : last_(Clock::now()) {
  thread_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    while (!ends_) {
      changed_.wait_for(lock, kInterval, [this] { return ends_; });
      note(Clock::now());
    }
  });
}

Heartbeat::~Heartbeat() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Heartbeat::note(Clock::time_point now) {
  const auto between = now - last_ - kInterval;
  longest_ = std::max<int64_t>(
      longest_, std::chrono::duration_cast<std::chrono::nanoseconds>(between).count());
  last_ = now;
}

int64_t Heartbeat::take_longest_pause() {
  std::lock_guard lock(mutex_);
  note(Clock::now());
  return std::exchange(longest_, 0);
}

}  // namespace perigee::train
