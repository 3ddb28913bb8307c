#include "cuda/torch_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <mutex>
#include <utility>

#include "cuda/torch_side.h"

namespace perigee::cuda {
namespace {

using namespace c10::cuda::CUDACachingAllocator;  // NOLINT: its types are the interface
using c10::DeviceIndex;
using c10::MempoolId_t;

// Who wants to know of this thread's allocations on a GPU: at most one of the two.
struct Listener {
  int device = -1;
  exec::ServedAllocations* served = nullptr;
  std::vector<exec::RecordedAllocations::Entry>* recorded = nullptr;
};

thread_local Listener listener;

CUDAAllocator* upstream = nullptr;  // set once, before the first tensor that is served

void release_served(void* address) {
  // After the op's run nothing of it is in use: the executor has checked that.
  if (listener.served) listener.served->free(address);
}

void note_freed(const void* address) {
  if (!listener.recorded) return;
  auto& entries = *listener.recorded;
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (entry->address != address || entry->freed_at >= 0) continue;
    entry->freed_at = static_cast<int64_t>(entries.size());
    break;
  }
}

void release_recorded(void* address) {
  note_freed(address);
  upstream->raw_deleter()(address);
}

// Frees served and other addresses: those of Allocator::raw_allocate.
void release_any(void* address) {
  if (listener.served && listener.served->free(address)) return;
  upstream->raw_deleter()(address);
}

class PlannedCudaAllocator final : public CUDAAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (!heard(bytes)) return upstream->allocate(bytes);
    const c10::Device device(at::kCUDA, static_cast<DeviceIndex>(listener.device));
    if (void* address = served(bytes)) return {address, address, &release_served, device};
    auto given = upstream->allocate(bytes);
    void* address = given.get();
    if (!listener.recorded || given.get_context() != address) return given;
    given.release_context();
    listener.recorded->push_back({.address = address, .bytes = static_cast<int64_t>(bytes)});
    return {address, address, &release_recorded, device};
  }

  // Temporaries of libraries.
  void* raw_alloc(size_t bytes) override {
    if (!heard(bytes)) return upstream->raw_alloc(bytes);
    if (void* address = served(bytes)) return address;
    void* address = upstream->raw_alloc(bytes);
    if (listener.recorded) {
      listener.recorded->push_back({.address = address, .bytes = static_cast<int64_t>(bytes)});
    }
    return address;
  }
  void raw_delete(void* address) override {
    if (listener.served && listener.served->free(address)) return;
    note_freed(address);
    upstream->raw_delete(address);
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release_any; }

  // The rest is the allocator's below.
  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return upstream->is_simple_data_ptr(data);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    upstream->copy_data(to, from, bytes);
  }
  bool initialized() override { return upstream->initialized(); }
  void emptyCache(MempoolId_t pool) override { upstream->emptyCache(pool); }
  DeviceStats getDeviceStats(DeviceIndex device) override {
    return upstream->getDeviceStats(device);
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    upstream->resetAccumulatedStats(device);
  }
  void resetPeakStats(DeviceIndex device) override { upstream->resetPeakStats(device); }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    return upstream->getMemoryInfo(device);
  }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    return upstream->raw_alloc_with_stream(bytes, stream);
  }
  void init(int devices) override { upstream->init(devices); }
  double getMemoryFraction(DeviceIndex device) override {
    return upstream->getMemoryFraction(device);
  }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    upstream->setMemoryFraction(fraction, device);
  }
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    return upstream->getExpandableSegmentSizes(device);
  }
  void enable(bool value) override { upstream->enable(value); }
  bool isEnabled() const override { return upstream->isEnabled(); }
  void cacheInfo(DeviceIndex device, size_t* largest) override {
    upstream->cacheInfo(device, largest);
  }
  void* getBaseAllocation(void* address, size_t* bytes) override {
    return upstream->getBaseAllocation(address, bytes);
  }
  // Ignores addresses that it has not allocated, as those of frames.
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    upstream->recordStream(data, stream);
  }
  SnapshotInfo snapshot(MempoolId_t pool, bool traces) override {
    return upstream->snapshot(pool, traces);
  }
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    upstream->beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    upstream->endAllocateToPool(device, pool);
  }
  void releasePool(DeviceIndex device, MempoolId_t pool) override {
    upstream->releasePool(device, pool);
  }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
    return upstream->getPoolUseCount(device, pool);
  }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                          std::shared_ptr<CUDAAllocator> of) override {
    upstream->createOrIncrefPool(device, pool, std::move(of));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) override {
    upstream->setUseOnOOM(device, pool, use);
  }
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override {
    upstream->setNoSplit(device, pool);
  }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    return upstream->checkPoolLiveAllocations(device, pool, expected);
  }
  ShareableHandle shareIpcHandle(void* address) override {
    return upstream->shareIpcHandle(address);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return upstream->getIpcDevPtr(std::move(handle));
  }
  bool isHistoryEnabled() override { return upstream->isHistoryEnabled(); }
  void recordHistory(bool enabled, CreateContextFn recorder, size_t most, RecordContext when,
                     bool clear, const std::vector<std::string>& skipped) override {
    upstream->recordHistory(enabled, recorder, most, when, clear, skipped);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& text) override {
    upstream->recordAnnotation(text);
  }
  void pushCompileContext(std::string& text) override { upstream->pushCompileContext(text); }
  void popCompileContext() override { upstream->popCompileContext(); }
  void setUserMetadata(const std::string& text) override { upstream->setUserMetadata(text); }
  std::string getUserMetadata() override { return upstream->getUserMetadata(); }
  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override {
    upstream->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override {
    upstream->attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex other) override {
    upstream->enablePeerAccess(device, other);
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                          cudaStream_t stream, bool peers) override {
    return upstream->memcpyAsync(to, to_device, from, from_device, bytes, stream, peers);
  }
  std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex device,
                                                     MempoolId_t pool) override {
    return upstream->getCheckpointState(device, pool);
  }
  CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                         std::shared_ptr<AllocatorState> state) override {
    return upstream->setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override { return upstream->name(); }

 private:
  static bool heard(size_t bytes) {
    return listener.device >= 0 && bytes > 0 && c10::cuda::current_device() == listener.device;
  }
  static void* served(size_t bytes) {
    return listener.served ? listener.served->serve(static_cast<int64_t>(bytes)) : nullptr;
  }
};

}  // namespace

void install_torch_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    upstream = get();
    // Lives as long as the process: tensors of static lifetime point to it.
    auto* planned = new PlannedCudaAllocator;
    allocator.store(planned);
    c10::SetAllocator(at::kCUDA, planned, /*priority=*/100);
  });
}

void serve(int device, exec::ServedAllocations* allocations) {
  listener = {.device = allocations ? device : -1, .served = allocations};
}

void record(int device, std::vector<exec::RecordedAllocations::Entry>* entries) {
  listener = {.device = entries ? device : -1, .recorded = entries};
}

}  // namespace perigee::cuda
