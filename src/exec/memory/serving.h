// The lifetime of an op's served allocations.
#pragma once

#include "base/fail.h"
#include "exec/device.h"
#include "exec/memory/served_allocations.h"

namespace perigee::exec {

// Has the device serve an op's allocations, if there are any to serve, during its lifetime.
class Serving {
 public:
  Serving(Device& device, ServedAllocations* served) : device_(device), served_(served) {
    if (!served_) return;
    served_->start();
    device_.serve(served_);
  }
  ~Serving() {
    if (served_) device_.serve(nullptr);
  }
  Serving(const Serving&) = delete;

  void stop() const {
    if (served_) served_->stop();
  }
  void check_all_freed() const {
    if (!served_ || served_->in_use() == 0) return;
    fail_run(
        "exec",
        "an op must free its allocations before it ends, but keeps {} bytes at planned addresses",
        served_->in_use());
  }

 private:
  Device& device_;
  ServedAllocations* served_;
};

}  // namespace perigee::exec
