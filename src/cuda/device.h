// A GPU as a rank's device, with its events and its clock.
#pragma once

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "exec/cuda.h"
#include "exec/device.h"

namespace perigee::cuda {

// A CUDA event, destroyed with this object.
class Event {
 public:
  explicit Event(bool timed = false);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream);
  // Makes work submitted to `stream` after this call wait for the event.
  void block(cudaStream_t stream) const;
  // Returns whether the device has reached the event.
  bool passed() const;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Converts timed events to nanoseconds of exec::now().
class Clock {
 public:
  Clock() = default;
  ~Clock();
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  // Synchronises the clocks of host and device; the host waits for the stream.
  void start(cudaStream_t stream);
  // Returns when the device reached the event. Requires passed() and start() before the event.
  int64_t time(const Event& event) const;

 private:
  cudaEvent_t origin_ = nullptr;
  int64_t at_ = 0;
};

class CudaDevice : public exec::Device {
 public:
  // Returns the compute stream.
  virtual c10::cuda::CUDAStream stream() const = 0;
  // Returns the clock, which is synchronised at the start of each step.
  virtual const Clock& clock() const = 0;
  int index() const { return place().index(); }
};

// Returns the rank's device. Throws Error where there is no such GPU or it is not supported.
std::shared_ptr<CudaDevice> make_device(const exec::CudaDeviceOptions& options);

// Returns the GPUs of this process, or the reason why there are none.
exec::CudaHost::Gpus list_gpus();

}  // namespace perigee::cuda
