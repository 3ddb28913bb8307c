// One capture at a time in a process; captures of one thread may nest.
#pragma once

#include <mutex>

namespace perigee::tracing {

class CaptureLock {
 public:
  CaptureLock() : lock_(mutex()) {}

 private:
  static std::recursive_mutex& mutex() {
    static std::recursive_mutex mutex;
    return mutex;
  }
  std::lock_guard<std::recursive_mutex> lock_;
};

}  // namespace perigee::tracing
