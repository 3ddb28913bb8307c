#include "cuda/check.h"
#include "cuda/device.h"
#include "exec/comm/communicator.h"

namespace perigee::cuda {

Event::Event(bool timed) {
  PERIGEE_CUDA(
      cudaEventCreateWithFlags(&event_, timed ? cudaEventDefault : cudaEventDisableTiming));
}

Event::~Event() { cudaEventDestroy(event_); }

void Event::record(cudaStream_t stream) { PERIGEE_CUDA(cudaEventRecord(event_, stream)); }

void Event::block(cudaStream_t stream) const {
  PERIGEE_CUDA(cudaStreamWaitEvent(stream, event_, 0));
}

bool Event::passed() const {
  const auto result = cudaEventQuery(event_);
  if (result == cudaErrorNotReady) {
    // cudaErrorNotReady is no failure, but it stays the last error until it is cleared.
    cudaGetLastError();
    return false;
  }
  PERIGEE_CUDA(result);
  return true;
}

void Clock::start(cudaStream_t stream) {
  if (!origin_) PERIGEE_CUDA(cudaEventCreate(&origin_));
  PERIGEE_CUDA(cudaEventRecord(origin_, stream));
  PERIGEE_CUDA(cudaEventSynchronize(origin_));
  at_ = exec::now();
}

int64_t Clock::time(const Event& event) const {
  float milliseconds = 0;
  PERIGEE_CUDA(cudaEventElapsedTime(&milliseconds, origin_, event.get()));
  return at_ + static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
}

Clock::~Clock() {
  if (origin_) cudaEventDestroy(origin_);
}

}  // namespace perigee::cuda
