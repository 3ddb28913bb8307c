#include "cuda/graphs/step_graph.h"

#include <ATen/ATen.h>

#include <exception>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "cuda/check.h"
#include "cuda/graphs/recorded_collectives.h"
#include "cuda/host_copies.h"
#include "cuda/torch_side.h"

namespace perigee::cuda {
namespace {

// A copy from the host in a graph.
struct Upload {
  std::shared_ptr<std::byte> memory;  // pinned; of this copy alone, as long as the graph
  int64_t bytes = 0;
};

Upload make_upload(int64_t bytes) {
  return {
      pinned_memory(bytes, {.purpose = "a recorded step", .remedy = "set cluster.graphs = false"}),
      bytes};
}

void destroy_graph(cudaGraphExec_t& graph, int gpu) {
  if (!graph) return;
  try {
    const DeviceGuard guard(gpu);
    calls().cudaGraphExecDestroy(std::exchange(graph, nullptr));
  } catch (const std::exception&) {
    // The GPU has failed.
  }
}

class StepGraph : public exec::RecordedStep {
 public:
  StepGraph(CudaDevice& device, std::span<const int64_t> upload_bytes)
      : device_(device),
        state_(device.shared_graph_state()),
        index_(device.index()),
        number_(make_upload(sizeof(uint32_t))),
        step_(device.allocate(sizeof(uint32_t), /*communicates=*/false)),
        pool_(device.index()),
        collectives_(device.index()) {
    for (const auto bytes : upload_bytes) uploads_.push_back(make_upload(bytes));
  }

  ~StepGraph() override {
    if (state_->running == &collectives_) state_->running = nullptr;
    state_->graphs.erase(&graph_);
    destroy_graph(graph_, index_);
  }

  void write(size_t upload, const at::Tensor& source) override {
    const auto& [memory, bytes] = uploads_.at(upload);
    if (static_cast<int64_t>(source.nbytes()) != bytes) {
      fail_run("exec", "upload {} of a recorded step has {} bytes, but got {}", upload, bytes,
               source.nbytes());
    }
    if (bytes == 0) return;
    // The source need not be contiguous.
    at::from_blob(memory.get(), source.sizes(), source.options().device(at::kCPU)).copy_(source);
  }

  void record(const std::function<void()>& submit) override {
    const auto stream = device_.stream();
    cudaGraph_t captured = nullptr;
    std::exception_ptr failure;
    pool_.open();
    PERIGEE_CUDA(cudaStreamBeginCapture, stream, cudaStreamCaptureModeThreadLocal);
    state_->recording = &collectives_;
    try {
      copy(step_.get(), number_);
      submit();
    } catch (...) {
      failure = std::current_exception();
    }
    try {
      collectives_.join(stream);
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
    state_->recording = nullptr;
    const auto ended = calls().cudaStreamEndCapture(stream, &captured);
    pool_.close();
    if (!failure && ended == cudaSuccess && next_ != uploads_.size()) {
      failure = std::make_exception_ptr(Error(Status::failed, "exec", "a batch was not uploaded"));
    }
    const std::shared_ptr<void> dropped(captured, [](void* graph) {
      if (graph) calls().cudaGraphDestroy(static_cast<cudaGraph_t>(graph));
    });
    if (failure) {
      calls().cudaGetLastError();
      std::rethrow_exception(failure);
    }
    check(ended, "cudaStreamEndCapture");
    PERIGEE_CUDA(cudaGraphInstantiateWithFlags, &graph_, captured, 0);
    state_->graphs.insert(&graph_);
  }

  void upload(const at::Tensor& target) override {
    const auto& upload = uploads_.at(next_++);
    if (static_cast<int64_t>(target.nbytes()) != upload.bytes || !target.is_contiguous()) {
      fail_run("exec", "an upload of a recorded step needs {} contiguous bytes, but got {}",
               upload.bytes, target.nbytes());
    }
    if (upload.bytes > 0) copy(target.mutable_data_ptr(), upload);
  }

  const uint32_t* step_in_memory() const override {
    return reinterpret_cast<const uint32_t*>(step_.get());
  }

  void launch(const Launch& launch) override {
    *reinterpret_cast<uint32_t*>(number_.memory.get()) = static_cast<uint32_t>(launch.step);
    collectives_.begin(device_.stream());
    PERIGEE_CUDA(cudaGraphLaunch, graph_, device_.stream());
    state_->launched = exec::now();
    state_->usual_nanoseconds = launch.usual_nanoseconds;
    state_->running = &collectives_;
  }

 private:
  void copy(void* to, const Upload& upload) {
    PERIGEE_CUDA(cudaMemcpyAsync, to, upload.memory.get(), static_cast<size_t>(upload.bytes),
                 cudaMemcpyHostToDevice, device_.stream());
  }

  CudaDevice& device_;
  std::shared_ptr<GraphState> state_;
  int index_;  // of the GPU
  std::vector<Upload> uploads_;
  Upload number_;  // of the step
  std::shared_ptr<std::byte> step_;
  CapturePool pool_;
  RecordedCollectives collectives_;
  size_t next_ = 0;  // upload to be recorded
  cudaGraphExec_t graph_ = nullptr;
};

class GraphRecorder : public exec::Recorder {
 public:
  explicit GraphRecorder(CudaDevice& device) : device_(device) {}

  std::unique_ptr<exec::RecordedStep> prepare(std::span<const int64_t> upload_bytes) override {
    const DeviceGuard guard(device_.index());
    return std::make_unique<StepGraph>(device_, upload_bytes);
  }

 private:
  CudaDevice& device_;
};

}  // namespace

std::unique_ptr<exec::Recorder> graph_recorder(CudaDevice& device) {
  return std::make_unique<GraphRecorder>(device);
}

void destroy_graphs(CudaDevice& device) {
  for (auto* graph : device.graph_state().graphs) destroy_graph(*graph, device.index());
}

}  // namespace perigee::cuda
