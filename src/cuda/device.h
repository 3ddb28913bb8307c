// One GPU as a rank's device, its events and its clock.
#pragma once

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "exec/cuda.h"
#include "exec/device.h"

namespace perigee::cuda {

// An event that goes with its owner.
class Event {
 public:
  explicit Event(bool timed = false);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream);
  // What is given to `stream` after this waits for the event.
  void hold(cudaStream_t stream) const;
  // Whether the device has passed it.
  bool passed() const;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Tells when events were passed, in nanoseconds of exec::now().
class Clock {
 public:
  Clock() = default;
  ~Clock();
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  // Compares the clocks; the host waits for the stream.
  void start(cudaStream_t stream);
  int64_t time(const Event& event) const;

 private:
  cudaEvent_t origin_ = nullptr;
  int64_t at_ = 0;
};

class CudaDevice : public exec::Device {
 public:
  // The stream that computes.
  virtual c10::cuda::CUDAStream stream() const = 0;
  // Started at each step's begin.
  virtual const Clock& clock() const = 0;
  int index() const { return place().index(); }
};

// Throws Error where there is no such GPU.
std::shared_ptr<CudaDevice> make_device(const exec::CudaDeviceOptions& options);

// Returns the GPUs of this process, or why there are none.
exec::CudaHost::Gpus list_gpus();

}  // namespace perigee::cuda
