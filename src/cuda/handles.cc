#include "cuda/handles.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/check.h"

namespace perigee::cuda {
namespace {

// Handles that nobody uses, by GPU and kind. Never destroyed: CUDA may end before it.
template <class Handle, class Kind>
class Pool {
 public:
  // Returns a kept handle, or nullptr.
  Handle take(int device, Kind kind) {
    std::lock_guard lock(mutex_);
    auto& kept = kept_[{device, kind}];
    if (kept.empty()) return nullptr;
    const auto handle = kept.back();
    kept.pop_back();
    return handle;
  }
  void put(int device, Kind kind, Handle handle) {
    std::lock_guard lock(mutex_);
    kept_[{device, kind}].push_back(handle);
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, Kind>, std::vector<Handle>> kept_;
};

auto& streams() {
  static auto* pool = new Pool<cudaStream_t, Stream::Priority>;
  return *pool;
}

auto& events() {
  static auto* pool = new Pool<cudaEvent_t, bool>;
  return *pool;
}

}  // namespace

DeviceGuard::DeviceGuard(int device) {
  int current = 0;
  PERIGEE_CUDA(cudaGetDevice, &current);
  if (current == device) return;
  PERIGEE_CUDA(cudaSetDevice, device);
  before_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (before_ >= 0) calls().cudaSetDevice(before_);
}

Stream::Stream(int device, Priority priority)
    : device_(device), priority_(priority), stream_(streams().take(device, priority)) {
  if (stream_) return;
  const DeviceGuard guard(device);
  int least = 0, greatest = 0;
  PERIGEE_CUDA(cudaDeviceGetStreamPriorityRange, &least, &greatest);
  PERIGEE_CUDA(cudaStreamCreateWithPriority, &stream_, cudaStreamNonBlocking,
               priority == Priority::high ? greatest : least);
}

Stream::~Stream() {
  if (stream_) streams().put(device_, priority_, stream_);
}

Stream::Stream(Stream&& other) noexcept
    : device_(other.device_),
      priority_(other.priority_),
      stream_(std::exchange(other.stream_, nullptr)) {}

Event::Event(int device, bool timed)
    : device_(device), timed_(timed), event_(events().take(device, timed)) {
  if (event_) return;
  const DeviceGuard created_on(device);
  PERIGEE_CUDA(cudaEventCreateWithFlags, &event_,
               timed ? cudaEventDefault : cudaEventDisableTiming);
}

Event::~Event() { events().put(device_, timed_, event_); }

void Event::record(cudaStream_t stream) {
  const DeviceGuard guard(device_);
  PERIGEE_CUDA(cudaEventRecord, event_, stream);
}

void Event::record_in_launches(cudaStream_t stream) {
  const DeviceGuard guard(device_);
  PERIGEE_CUDA(cudaEventRecordWithFlags, event_, stream, cudaEventRecordExternal);
}

void Event::block(cudaStream_t stream) const {
  PERIGEE_CUDA(cudaStreamWaitEvent, stream, event_, 0);
}

bool Event::passed() const {
  const auto result = calls().cudaEventQuery(event_);
  if (result == cudaErrorNotReady) {
    // cudaErrorNotReady is no failure, but it stays the last error until it is cleared.
    calls().cudaGetLastError();
    return false;
  }
  check(result, "cudaEventQuery");
  return true;
}

void Event::wait() const { PERIGEE_CUDA(cudaEventSynchronize, event_); }

int64_t Event::since(const Event& earlier) const {
  float milliseconds = 0;
  PERIGEE_CUDA(cudaEventElapsedTime, &milliseconds, earlier.event_, event_);
  return static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
}

}  // namespace perigee::cuda
