// Steps that are recorded once and then replayed (on a GPU: CUDA graphs). Recorded work has the
// tensors, and the numbers that the host gave its ops, of the step that was recorded. It reads from
// memory all that differs by step: batches, scalars and the step's number.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace perigee::exec {

class RecordedStep {
 public:
  virtual ~RecordedStep() = default;

  // Sets the source of an upload for the next launch. `upload`: its number among the calls of
  // upload(), from 0. Every launch needs a call for each upload, after the last launch has ended
  // (Device::synchronize). The caller may write to `source` after this returns. Throws Error for a
  // source of another number of bytes.
  virtual void write(size_t upload, const at::Tensor& source) = 0;

  // Records the work that `submit` submits to the device, instead of running it: ops, upload(),
  // Device::copy, Group::transfer of recordable kinds, and Work::wait, which `submit` calls for all
  // its copies and transfers. Called once. Throws what `submit` throws, and Error where the device
  // cannot record the work, of which nothing has run then.
  virtual void record(const std::function<void()>& submit) = 0;

  // Within `submit`: copies the source of the next upload to `target`.
  virtual void upload(const at::Tensor& target) = 0;

  // Returns the memory in which recorded ops find the step's number (Draw::step_in_memory).
  virtual const uint32_t* step_in_memory() const = 0;

  // A launch of the recorded work. `usual_nanoseconds`: the time that the step took at most without
  // being recorded. A communicator's time-out is counted for the launch as a whole, from its call,
  // and after this time: it is not known when a wait for another rank begins within the work.
  struct Launch {
    int64_t step = 1;
    int64_t usual_nanoseconds = 0;
  };
  // Submits the recorded work, after all work submitted before and before all work submitted later.
  virtual void launch(const Launch& launch) = 0;
};

class Recorder {
 public:
  virtual ~Recorder() = default;

  // Returns a step to record. `upload_bytes`: the bytes of each upload, in their order; each has host
  // memory of its own as long as the step. Throws Error where there is not enough memory.
  virtual std::unique_ptr<RecordedStep> prepare(std::span<const int64_t> upload_bytes) = 0;
};

}  // namespace perigee::exec
