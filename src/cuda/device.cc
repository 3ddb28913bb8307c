#include "cuda/device.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "base/fail.h"
#include "cuda/check.h"
#include "cuda/dry_run.h"
#include "cuda/failures.h"
#include "cuda/graphs/step_graph.h"
#include "cuda/host_copies.h"
#include "cuda/ops/ops.h"
#include "cuda/staging.h"
#include "cuda/torch_side.h"
#include "exec/ops/deterministic.h"

namespace perigee::cuda {
namespace {

// Current and peak bytes of frames. Frames may outlive their device.
struct FrameCount {
  std::atomic<int64_t> now{0}, most{0};

  void add(int64_t bytes) {
    const int64_t sum = now += bytes;
    if (sum > most) most = sum;
  }
};

// Calls f on the GPU. Throws nothing: memory is freed after a failure, too.
template <class F>
void on_device(int index, F f) {
  try {
    const DeviceGuard guard(index);
    f();
  } catch (const std::exception&) {
    // The GPU has failed, and its memory is gone.
  }
}

// Returns memory that can be registered for zero-copy transfers, or nullptr where NCCL gives none.
std::shared_ptr<std::byte> nccl_memory(int index, size_t bytes) {
  void* memory = nullptr;
  if (calls().ncclMemAlloc(&memory, bytes) != ncclSuccess) {
    calls().cudaGetLastError();
    return nullptr;
  }
  return {static_cast<std::byte*>(memory),
          [index](std::byte* p) { on_device(index, [p] { calls().ncclMemFree(p); }); }};
}

// Returns memory for frames, or nullptr where there is not enough.
std::shared_ptr<std::byte> cuda_memory(int index, size_t bytes) {
  void* memory = nullptr;
  const auto result = calls().cudaMalloc(&memory, bytes);
  if (result == cudaErrorMemoryAllocation) {
    calls().cudaGetLastError();
    return nullptr;
  }
  check(result, "cudaMalloc");
  return {static_cast<std::byte*>(memory),
          [index](std::byte* p) { on_device(index, [p] { calls().cudaFree(p); }); }};
}

class GpuDevice : public CudaDevice {
 public:
  GpuDevice(const exec::CudaDeviceOptions& options, const exec::GpuInfo& gpu)
      : kind_(fmt::format("cuda {} {}.{}{}{}", gpu.name, gpu.major, gpu.minor,
                          options.deterministic ? " deterministic" : "",
                          options.tf32 ? " tf32" : "")),
        place_(at::kCUDA, static_cast<c10::DeviceIndex>(options.index)),
        deterministic_(options.deterministic),
        capability_(10 * gpu.major + gpu.minor),
        stream_(options.index, Stream::Priority::low),
        staging_(options.index),
        clock_(options.index) {
    const DeviceGuard guard(options.index);
    void* fault = nullptr;
    PERIGEE_CUDA(cudaHostAlloc, &fault, sizeof(Fault), cudaHostAllocMapped);
    fault_ = new (fault) Fault;
  }

  ~GpuDevice() override { calls().cudaFreeHost(fault_); }

  at::Device place() const override { return place_; }
  std::string kind() const override { return kind_; }
  cudaStream_t stream() const override { return stream_.get(); }
  const Clock& clock() const override { return clock_; }

  exec::Kernel kernel(const exec::Op& op) override {
    auto kernel = cuda_kernel(op, {.place = place_,
                                   .fault = fault_,
                                   .deterministic = deterministic_,
                                   .capability = capability_});
    if (deterministic_) kernel = exec::deterministic_only(std::move(kernel), op.name);
    return with_remedies(std::move(kernel), index(), [index = index(), frames = frames_] {
      return frames->now + cached_memory(index);
    });
  }

  // An op may allocate differently than in its dry run: workspaces that libraries keep, others that
  // a library chooses by the memory that is free.
  bool plans_memory() const override { return false; }
  void serve(exec::ServedAllocations* allocations) override { cuda::serve(index(), allocations); }

  std::shared_ptr<std::byte> allocate(int64_t bytes, bool communicates) override {
    const DeviceGuard guard(index());
    const auto wanted = static_cast<size_t>(std::max<int64_t>(bytes, 64));
    auto memory = frame_memory(wanted, communicates);
    if (!memory) {
      // Free the memory that LibTorch caches, and retry.
      free_cached_memory();
      memory = frame_memory(wanted, communicates);
    }
    if (!memory) {
      fail_run("exec", "the program's frames need {} bytes of memory, but {}", bytes,
               memory_state(index(), frames_->now + cached_memory(index())));
    }
    PERIGEE_CUDA(cudaMemsetAsync, memory.get(), 0, wanted, stream());
    PERIGEE_CUDA(cudaStreamSynchronize, stream());
    frames_->add(bytes);
    return {memory.get(), [memory, bytes, frames = frames_](std::byte*) mutable {
              memory.reset();
              frames->add(-bytes);
            }};
  }

  std::shared_ptr<std::byte> allocate_host(int64_t bytes) override {
    const DeviceGuard guard(index());
    return pinned_memory(bytes);
  }

  std::shared_ptr<exec::Work> copy(const at::Tensor& to, const at::Tensor& from,
                                   bool to_host) override {
    auto& way = to_host ? out_ : in_;
    if (!way) way = std::make_unique<HostCopies>(*this);
    return way->start(to, from);
  }

  std::optional<compile::OpTrace> dry_run(const compile::OpInstance& instance) override {
    return cuda::dry_run(*this, instance);
  }

  // The peaks of LibTorch's allocator and of frames need not coincide, but frames are allocated and
  // freed between steps only, so their sum is the peak within steps.
  void reset_peak() override {
    frames_->most = frames_->now.load();
    outside_ = reset_tensor_peak(index());
  }
  int64_t peak() const override { return frames_->most + tensor_peak(index()) - outside_; }

  std::shared_ptr<void> enter() override {
    auto guard = direct_to(index(), stream());
    make_workspaces();
    // The host may have written to parameters on the default stream.
    Event before(index());
    before.record(nullptr);
    before.block(stream());
    marks_.clear();
    clock_.start(stream());
    return guard;
  }

  exec::Recorder* recorder() override { return recorder_.get(); }

  void upload(const at::Tensor& target, const at::Tensor& source) override {
    staging_.upload(target, source, stream());
  }

  void synchronize(const std::function<void()>& check) override {
    using Time = std::chrono::steady_clock;
    Event done(index());
    done.record(stream());
    const auto begin = Time::now();
    auto checked = begin;
    while (!done.passed()) {
      const auto now = Time::now();
      // Sleep only after 20 ms, so that short steps are not delayed.
      if (now - begin > std::chrono::milliseconds(20)) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      if (check && now - checked > std::chrono::milliseconds(200)) {
        check();
        checked = now;
      }
    }
    graph_state().launched = 0;
    take_fault(*fault_);
  }

  int64_t mark() override {
    marks_.push_back(std::make_unique<Event>(index(), /*timed=*/true));
    marks_.back()->record(stream());
    return std::ssize(marks_) - 1;
  }

  int64_t time(int64_t mark) override { return clock_.time(*marks_.at(mark)); }

  bool registrable() const override { return registrable_; }

 private:
  // Returns nullptr where there is not enough. cudaMalloc's memory serves for communication, too.
  std::shared_ptr<std::byte> frame_memory(size_t bytes, bool communicates) {
    if (!communicates) return cuda_memory(index(), bytes);
    if (auto memory = nccl_memory(index(), bytes)) return memory;
    auto memory = cuda_memory(index(), bytes);
    if (memory) registrable_ = false;
    return memory;
  }

  std::string kind_;
  at::Device place_;
  bool deterministic_;
  int capability_;
  Stream stream_;
  Fault* fault_ = nullptr;
  std::shared_ptr<FrameCount> frames_ = std::make_shared<FrameCount>();
  Staging staging_;
  std::unique_ptr<HostCopies> out_, in_;  // to the host and from it
  Clock clock_;
  std::vector<std::unique_ptr<Event>> marks_;
  std::unique_ptr<exec::Recorder> recorder_ = graph_recorder(*this);
  bool registrable_ = true;
  int64_t outside_ = 0;  // bytes of tensors in use at reset_peak()
};

}  // namespace

void CudaDevice::follow(const Event& event) const {
  event.block(stream());
  const auto current = current_stream(index());
  if (current == stream()) return;
  const DeviceGuard guard(index());  // outside enter() it is the GPU's default stream
  event.block(current);
}

void Clock::start(cudaStream_t stream) {
  origin_.record(stream);
  origin_.wait();
  at_ = exec::now();
}

exec::CudaHost::Gpus list_gpus() {
  exec::CudaHost::Gpus gpus;
  int count = 0;
  const auto result = calls().cudaGetDeviceCount(&count);
  if (result != cudaSuccess || count == 0) {
    calls().cudaGetLastError();
    const auto error = result == cudaSuccess ? cudaErrorNoDevice : result;
    int driver = 0;  // stays 0 without a driver, which CUDA reports as an insufficient driver
    const bool none = calls().cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0;
    gpus.why_none = (none ? "no NVIDIA driver"
                     : error == cudaErrorInsufficientDriver
                         ? "the NVIDIA driver is older than the toolkit"
                         : calls().cudaGetErrorString(error)) +
                    remedy(error);
    return gpus;
  }
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties{};
    PERIGEE_CUDA(cudaGetDeviceProperties, &properties, index);
    gpus.found.push_back({.name = properties.name,
                          .memory = static_cast<int64_t>(properties.totalGlobalMem),
                          .major = properties.major,
                          .minor = properties.minor,
                          .processors = properties.multiProcessorCount,
                          .id = {properties.uuid.bytes, sizeof properties.uuid.bytes}});
  }
  return gpus;
}

std::shared_ptr<CudaDevice> make_device(const exec::CudaDeviceOptions& options) {
  const auto gpus = list_gpus();
  if (gpus.found.empty()) {
    fail("cuda", "device = \"cuda\" needs an NVIDIA GPU, but got: {}", gpus.why_none);
  }
  if (options.index < 0 || options.index >= std::ssize(gpus.found)) {
    fail("cuda", "this host has GPUs 0 to {}, but a rank asks for GPU {}{}",
         std::ssize(gpus.found) - 1, options.index, remedy(cudaErrorInvalidDevice));
  }
  const auto& gpu = gpus.found[options.index];
  if (!gpu.usable()) {
    fail("cuda", "a GPU must have compute capability 8.0 or later, but GPU {} ({}) has {}.{}{}",
         options.index, gpu.name, gpu.major, gpu.minor, remedy(cudaErrorNoKernelImageForDevice));
  }
  start_torch();
  allow_tf32(options.tf32);
  if (options.deterministic) exec::refuse_nondeterministic();
  return std::make_shared<GpuDevice>(options, gpu);
}

}  // namespace perigee::cuda
