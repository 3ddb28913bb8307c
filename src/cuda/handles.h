// Streams and events of a GPU, and the thread's current GPU. A stream or event belongs to one GPU,
// and CUDA creates and launches on the current one.
#pragma once

#include <cstdint>

#include "cuda/calls.h"

namespace perigee::cuda {

// Makes the GPU current for this thread until the guard is dropped. Dropping never throws.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = -1;  // -1: was current already
};

// A stream of its own, not ordered with the default stream. Streams are kept for reuse when they
// are dropped, since LibTorch's allocator keeps memory by stream.
class Stream {
 public:
  enum class Priority : uint8_t { low, high };
  Stream(int device, Priority priority);
  ~Stream();
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  int device_;
  Priority priority_;
  cudaStream_t stream_ = nullptr;
};

// A CUDA event, from a pool of its GPU.
class Event {
 public:
  explicit Event(int device, bool timed = false);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // `stream`: of the event's GPU; nullptr: its default stream.
  void record(cudaStream_t stream);
  // Has each launch of the graph that is being captured record the event, after the work that
  // `stream`, which is captured, has so far. The host may ask for it as for any other event.
  void record_in_launches(cudaStream_t stream);
  // Makes work submitted to `stream`, of any GPU, after this call wait for the event.
  void block(cudaStream_t stream) const;
  // Returns whether the GPU has reached the event.
  bool passed() const;
  // Returns when the host has reached the event.
  void wait() const;
  // Returns the nanoseconds from `earlier` to this event; both are timed and passed.
  int64_t since(const Event& earlier) const;

 private:
  int device_;
  bool timed_;
  cudaEvent_t event_ = nullptr;
};

}  // namespace perigee::cuda
