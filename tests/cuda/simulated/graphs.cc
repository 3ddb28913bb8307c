// CUDA graphs: calls on captured streams are repeated by each launch, with events of the
// graph's own, on the launch's stream and on a stream for each other one of the capture.
#include <algorithm>
#include <utility>

#include "tests/cuda/simulated/machine.h"
#include "tests/cuda/simulated/state.h"

namespace perigee::cuda::simulated {
namespace {

struct Executable {
  std::shared_ptr<Capture> capture;
  std::map<const StreamState*, StreamState*> branches;  // by stream, except the origin
};

thread_local std::shared_ptr<Capture> capturing;  // that this thread has begun

// Streams that no graph uses, by device.
std::map<int, std::vector<StreamState*>>& spare_streams() {
  static std::map<int, std::vector<StreamState*>> spare;
  return spare;
}

Capture& capture_of(cudaGraph_t graph) {
  return **reinterpret_cast<std::shared_ptr<Capture>*>(graph);
}
Executable& executable_of(cudaGraphExec_t graph) { return *reinterpret_cast<Executable*>(graph); }

// Counts a submission to a captured stream.
void count_node(Capture& capture, const StreamState& stream) { ++capture.seen[&stream][&stream]; }

void add_node(Capture& capture, StreamState& stream, Submission submission) {
  capture.nodes.push_back({&stream, label_of_thread(), std::move(submission)});
  count_node(capture, stream);
}

cudaError_t begin_capture(cudaStream_t handle, cudaStreamCaptureMode) {
  auto& m = machine();
  const Lock lock(m.mutex);
  auto& stream = m.stream(handle);
  if (!handle || stream.capture || capturing) {
    return m.refuse("a thread captures one stream that is not the default one",
                    cudaErrorStreamCaptureUnsupported);
  }
  capturing = stream.capture = std::make_shared<Capture>();
  capturing->origin = &stream;
  capturing->streams = {&stream};
  return cudaSuccess;
}

cudaError_t end_capture(cudaStream_t handle, cudaGraph_t* graph) {
  auto& m = machine();
  const Lock lock(m.mutex);
  auto& origin = m.stream(handle);
  *graph = nullptr;
  const auto capture = std::exchange(capturing, nullptr);
  if (!capture || capture->origin != &origin) {
    return m.refuse("a capture ends on its thread and stream", cudaErrorIllegalState);
  }
  capture->ended = true;
  for (auto* stream : capture->streams) stream->capture.reset();
  if (capture->broken) return cudaErrorStreamCaptureInvalidated;
  for (const auto* stream : capture->streams) {
    if (capture->seen[&origin][stream] == capture->seen[stream][stream]) continue;
    return m.refuse("a captured stream is joined before the capture ends: " + stream->name,
                    cudaErrorStreamCaptureUnjoined);
  }
  *graph = reinterpret_cast<cudaGraph_t>(new std::shared_ptr<Capture>(capture));
  return cudaSuccess;
}

cudaError_t instantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  auto& m = machine();
  const Lock lock(m.mutex);
  auto made = std::make_unique<Executable>();
  made->capture = *reinterpret_cast<std::shared_ptr<Capture>*>(graph);
  for (const auto* stream : capture_of(graph).streams) {
    if (stream == made->capture->origin) continue;
    auto& spare = spare_streams()[stream->device];
    if (spare.empty()) {
      m.streams.push_back(std::make_unique<StreamState>(StreamState{stream->device, {}}));
      spare.push_back(m.streams.back().get());
    }
    made->branches[stream] = spare.back();
    spare.pop_back();
  }
  *executable = reinterpret_cast<cudaGraphExec_t>(made.release());
  return cudaSuccess;
}

cudaError_t launch_graph(cudaGraphExec_t handle, cudaStream_t stream) {
  auto& m = machine();
  Lock lock(m.mutex);
  auto& on = m.stream(stream);
  if (on.capture || capturing) {
    return m.refuse("a graph is not launched in a capture", cudaErrorStreamCaptureUnsupported);
  }
  const auto& [capture, branches] = executable_of(handle);
  const auto own = label_of_thread();
  for (const auto& [origin, label, submit] : capture->nodes) {
    set_label(label);
    submit(origin == capture->origin ? on : *branches.at(origin));
  }
  set_label(own);
  m.submitted(lock);
  return cudaSuccess;
}

cudaError_t destroy_graph(cudaGraph_t graph) {
  delete reinterpret_cast<std::shared_ptr<Capture>*>(graph);
  return cudaSuccess;
}

cudaError_t destroy_executable(cudaGraphExec_t graph) {
  const std::unique_ptr<Executable> dropped(&executable_of(graph));
  auto& m = machine();
  const Lock lock(m.mutex);
  for (const auto& [origin, stream] : dropped->branches) {
    spare_streams()[stream->device].push_back(stream);
  }
  return cudaSuccess;
}

}  // namespace

void Machine::submit(StreamState& stream, Submission submission) {
  if (stream.capture) {
    add_node(*stream.capture, stream, std::move(submission));
    return;
  }
  if (capturing) {
    capturing->broken = true;
    broken.push_back("a thread that captures submits to streams of the capture");
  }
  submission(stream);
}

bool Machine::capture_record(EventState& event, StreamState& stream) {
  event.capture = stream.capture;
  event.in_graph = nullptr;
  if (!stream.capture) {
    if (capturing) refuses_in_capture("a record of an event on another stream");
    return false;
  }
  events.push_back(std::make_unique<EventState>());
  event.in_graph = events.back().get();
  event.in_graph->device = event.device;
  add_node(*stream.capture, stream,
           [this, made = event.in_graph](StreamState& on) { record_on(*made, on); });
  event.seen = stream.capture->seen[&stream];
  return true;
}

bool Machine::capture_wait(StreamState& stream, EventState& event, cudaError_t& result) {
  if (!event.in_graph && !stream.capture) return false;
  if (!event.in_graph) {
    stream.capture->broken = true;
    result = refuse("a captured stream waits for captured work", cudaErrorStreamCaptureIsolation);
    return true;
  }
  const auto capture = event.capture.lock();
  if (!capture || capture->ended || (stream.capture && stream.capture != capture)) {
    result = refuse("work of a graph is not waited for elsewhere", cudaErrorCapturedEvent);
    return true;
  }
  if (!stream.capture) {
    stream.capture = capture;
    stream.capture->streams.push_back(&stream);
  }
  auto& seen = stream.capture->seen[&stream];
  for (const auto& [other, number] : event.seen) seen[other] = std::max(seen[other], number);
  add_node(*stream.capture, stream,
           [this, made = event.in_graph](StreamState& on) { wait_on(on, *made); });
  return true;
}

bool Machine::refuses_in_capture(const std::string& call) {
  if (!capturing) return false;
  capturing->broken = true;
  broken.push_back(call + " is not called while a stream is captured");
  return true;
}

void add_graphs(Calls& t) {
  t.cudaStreamBeginCapture = begin_capture;
  t.cudaStreamEndCapture = end_capture;
  t.cudaGraphInstantiateWithFlags = instantiate;
  t.cudaGraphLaunch = launch_graph;
  t.cudaGraphDestroy = destroy_graph;
  t.cudaGraphExecDestroy = destroy_executable;
}

}  // namespace perigee::cuda::simulated
