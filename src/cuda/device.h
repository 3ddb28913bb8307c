// A GPU as a rank's device, with its events and its clock.
#pragma once

#include <cstdint>
#include <memory>
#include <set>

#include "cuda/handles.h"
#include "exec/cuda.h"
#include "exec/device.h"

namespace perigee::cuda {

class RecordedCollectives;

// Converts timed events of a GPU to nanoseconds of exec::now().
class Clock {
 public:
  explicit Clock(int device) : origin_(device, /*timed=*/true) {}

  // Synchronises the clocks of host and GPU; the host waits for the stream.
  void start(cudaStream_t stream);
  // Returns when the GPU reached the event. Requires passed() and start() before the event.
  int64_t time(const Event& event) const { return at_ + event.since(origin_); }

 private:
  Event origin_;
  int64_t at_ = 0;
};

// Steps that are CUDA graphs (graphs/step_graph.h).
struct GraphState {
  // The collectives of the step that is being recorded: work that is submitted now becomes part of
  // its graph. nullptr: none is.
  RecordedCollectives* recording = nullptr;
  // exec::now() when the graph that runs was launched, exec::RecordedStep::Launch's time of it, and
  // its collectives; 0: none runs.
  int64_t launched = 0;
  int64_t usual_nanoseconds = 0;
  const RecordedCollectives* running = nullptr;
  std::set<cudaGraphExec_t*> graphs;  // of recorded steps; a destroyed one is nullptr
};

class CudaDevice : public exec::Device {
 public:
  // Returns the compute stream.
  virtual cudaStream_t stream() const = 0;
  // Returns the clock, which is synchronised at the start of each step.
  virtual const Clock& clock() const = 0;
  // Returns whether ncclMemAlloc gave all memory of allocate() for communication so far: NCCL
  // registers no other.
  virtual bool registrable() const = 0;
  int index() const { return place().index(); }
  GraphState& graph_state() { return *graph_state_; }
  // For graphs, which may outlive the device.
  const std::shared_ptr<GraphState>& shared_graph_state() const { return graph_state_; }

  // Makes later work on the compute stream, and on this thread's current stream, wait for
  // the event.
  void follow(const Event& event) const;

 private:
  std::shared_ptr<GraphState> graph_state_ = std::make_shared<GraphState>();
};

// Returns the rank's device. Throws Error where there is no such GPU or it is not supported.
std::shared_ptr<CudaDevice> make_device(const exec::CudaDeviceOptions& options);

// Returns the GPUs of this process, or the reason why there are none.
exec::CudaHost::Gpus list_gpus();

}  // namespace perigee::cuda
