#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "tests/cuda/simulated/blas_lt.h"
#include "tests/cuda/simulated/machine.h"
#include "tests/cuda/simulated/nccl/windows.h"
#include "tests/cuda/simulated/state.h"

namespace perigee::cuda::simulated {
namespace {

thread_local int current = 0;

EventState& event_of(cudaEvent_t event) { return *reinterpret_cast<EventState*>(event); }

cudaError_t get_device_count(int* count) {
  *count = kDevices;
  return cudaSuccess;
}

cudaError_t get_properties(cudaDeviceProp* properties, int device) {
  *properties = {};
  std::strcpy(properties->name, "simulated GPU");
  properties->totalGlobalMem = size_t{1} << 30;
  properties->major = 9;
  properties->multiProcessorCount = 4;
  properties->uuid.bytes[0] = static_cast<char>(device);
  return cudaSuccess;
}

cudaError_t set_device(int device) {
  if (device < 0 || device >= kDevices) return cudaErrorInvalidDevice;
  current = device;
  return cudaSuccess;
}

cudaError_t create_stream(cudaStream_t* stream, unsigned flags, int) {
  auto& m = machine();
  const Lock lock(m.mutex);
  if (flags != cudaStreamNonBlocking) {
    return m.refuse("a stream does not wait for the legacy stream", cudaErrorInvalidValue);
  }
  m.streams.push_back(std::make_unique<StreamState>(StreamState{current, {}}));
  *stream = reinterpret_cast<cudaStream_t>(m.streams.back().get());
  return cudaSuccess;
}

cudaError_t create_event(cudaEvent_t* event, unsigned flags) {
  auto& m = machine();
  const Lock lock(m.mutex);
  m.events.push_back(std::make_unique<EventState>());
  m.events.back()->device = current;
  m.events.back()->timed = !(flags & cudaEventDisableTiming);
  *event = reinterpret_cast<cudaEvent_t>(m.events.back().get());
  return cudaSuccess;
}

cudaError_t record(cudaEvent_t handle, cudaStream_t stream) {
  auto& m = machine();
  Lock lock(m.mutex);
  auto& event = event_of(handle);
  auto& on = m.stream(stream);
  if (event.device != on.device) {
    return m.refuse("an event is recorded on a stream of its own device",
                    cudaErrorInvalidResourceHandle);
  }
  if (!m.capture_record(event, on)) m.record_on(event, on);
  m.submitted(lock);
  return cudaSuccess;
}

// A record by each launch of a graph. The host may ask for the event, which has the state of its
// last record until a launch reaches this one.
cudaError_t record_with_flags(cudaEvent_t handle, cudaStream_t stream, unsigned flags) {
  auto& m = machine();
  Lock lock(m.mutex);
  auto& event = event_of(handle);
  auto& on = m.stream(stream);
  if (flags != cudaEventRecordExternal || !on.capture || event.device != on.device) {
    return m.refuse("an external record is on a captured stream of the event's device",
                    cudaErrorIllegalState);
  }
  m.submit(on, [&m, &event](StreamState& branch) {
    m.push(branch, [&m, &event] {
      event.passed = ++event.recorded;
      event.time = m.clock;
    });
  });
  m.submitted(lock);
  return cudaSuccess;
}

cudaError_t wait_event(cudaStream_t stream, cudaEvent_t handle, unsigned) {
  auto& m = machine();
  Lock lock(m.mutex);
  auto& event = event_of(handle);
  auto result = cudaSuccess;
  if (!m.capture_wait(m.stream(stream), event, result)) m.wait_on(m.stream(stream), event);
  m.submitted(lock);
  return result;
}

cudaError_t refuse_captured(Machine& m) {
  return m.refuse("an event of a graph is not asked for by the host", cudaErrorCapturedEvent);
}

cudaError_t query(cudaEvent_t handle) {
  auto& m = machine();
  Lock lock(m.mutex);
  auto& event = event_of(handle);
  if (m.refuses_in_capture("cudaEventQuery")) return cudaErrorStreamCaptureUnsupported;
  if (event.in_graph) return refuse_captured(m);
  if (m.in_turns()) {
    if (event.passed < event.recorded && !m.poll(lock, event)) {
      return cudaErrorUnknown;
    }
  } else {
    m.run_some(static_cast<int64_t>(m.random() % 4));
    m.changed.notify_all();
  }
  if (event.passed < event.recorded) return cudaErrorNotReady;
  m.clocks.host_polls(event);
  return cudaSuccess;
}

// Waits for `done`, running work meanwhile; work of other threads may be missing for it. `wait`: in
// the words of a deadlock.
template <class Done>
cudaError_t wait_until(Machine& m, Lock& lock, const Wait& wait, Done done) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!done()) {
    if (m.in_turns()) {
      if (!m.wait_a_turn(lock, wait)) return cudaErrorUnknown;
    } else if (m.run_some(1) > 0) {
      m.changed.notify_all();
    } else if (std::chrono::steady_clock::now() > limit) {
      return m.refuse("work that the host waits for must run within 20 s", cudaErrorUnknown);
    } else {
      m.changed.wait_for(lock, std::chrono::milliseconds(1));
    }
  }
  return cudaSuccess;
}

cudaError_t synchronize_event(cudaEvent_t handle) {
  auto& m = machine();
  Lock lock(m.mutex);
  auto& event = event_of(handle);
  if (m.refuses_in_capture("cudaEventSynchronize")) return cudaErrorStreamCaptureUnsupported;
  if (event.in_graph) return refuse_captured(m);
  const auto result = wait_until(m, lock, m.wait_of(event),
                                 [&] { return event.passed >= event.recorded; });
  m.clocks.host_waits(event);
  return result;
}

cudaError_t synchronize_stream(cudaStream_t handle) {
  auto& m = machine();
  Lock lock(m.mutex);
  auto& stream = m.stream(handle);
  if (m.refuses_in_capture("cudaStreamSynchronize")) return cudaErrorStreamCaptureUnsupported;
  const auto result = wait_until(m, lock, {"all work of " + stream.name, {&stream}, {}},
                                 [&] { return stream.queue.empty(); });
  m.clocks.host_waits(stream);
  return result;
}

cudaError_t elapsed(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  auto& m = machine();
  const Lock lock(m.mutex);
  const auto &a = event_of(from), &b = event_of(to);
  if (a.in_graph || b.in_graph) return refuse_captured(m);
  if (!a.timed || !b.timed || a.device != b.device) {
    return m.refuse("time passes between timed events of one device",
                    cudaErrorInvalidResourceHandle);
  }
  if (a.recorded == 0 || b.recorded == 0) {
    return m.refuse("time passes between events that were recorded",
                    cudaErrorInvalidResourceHandle);
  }
  if (a.passed < a.recorded || b.passed < b.recorded) return cudaErrorNotReady;
  *milliseconds = static_cast<float>(b.time - a.time);
  return cudaSuccess;
}

bool is_pinned(const Machine& m, const void* address) {
  const auto next = m.pinned.upper_bound(address);
  if (next == m.pinned.begin()) return false;
  const auto& [begin, bytes] = *std::prev(next);
  return address < static_cast<const char*>(begin) + bytes;
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                 cudaStream_t stream) {
  auto& m = machine();
  Lock lock(m.mutex);
  auto& captured = m.stream(stream);
  if (captured.capture && kind == cudaMemcpyHostToDevice && !is_pinned(m, from)) {
    captured.capture->broken = true;
    return m.refuse("a graph copies from pinned memory", cudaErrorStreamCaptureUnsupported);
  }
  m.submit(captured, [=, &m](StreamState& on) {
    name_by_label(on);
    m.clocks.submitted(on, label_or("a copy"), {.reads = {{from, bytes}}, .writes = {{to, bytes}}},
                       kind == cudaMemcpyHostToDevice);
    m.push(on, [=] { std::memcpy(to, from, bytes); });
  });
  m.submitted(lock);
  return cudaSuccess;
}

cudaError_t set_bytes(void* to, int value, size_t bytes, cudaStream_t stream) {
  auto& m = machine();
  const Lock lock(m.mutex);
  auto& on = m.stream(stream);
  const auto found = m.memory.find(to);
  if (found != m.memory.end() && found->second != on.device) {
    return m.refuse("memory is set by a stream of its device", cudaErrorInvalidValue);
  }
  m.submit(on, [=, &m](StreamState& branch) {
    m.clocks.submitted(branch, "a fill", {.reads = {}, .writes = {{to, bytes}}});
    m.push(branch, [=] { std::memset(to, value, bytes); });
  });
  return cudaSuccess;
}

cudaError_t allocate(void** memory, size_t bytes) {
  auto& m = machine();
  const Lock lock(m.mutex);
  if (m.refuses_in_capture("cudaMalloc")) return cudaErrorStreamCaptureUnsupported;
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  m.memory[*memory] = current;
  m.clocks.forget(*memory, bytes);
  return cudaSuccess;
}

cudaError_t give_back(void* memory) {
  auto& m = machine();
  const Lock lock(m.mutex);
  if (m.refuses_in_capture("cudaFree")) return cudaErrorStreamCaptureUnsupported;
  const auto found = m.memory.find(memory);
  if (found == m.memory.end() || found->second != current) {
    return m.refuse("memory is freed on its device", cudaErrorInvalidValue);
  }
  m.memory.erase(found);
  std::free(memory);
  return cudaSuccess;
}

cudaError_t allocate_host(void** memory, size_t bytes, unsigned) {
  auto& m = machine();
  const Lock lock(m.mutex);
  if (m.refuses_in_capture("cudaHostAlloc")) return cudaErrorStreamCaptureUnsupported;
  *memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  m.pinned[*memory] = bytes;
  m.clocks.forget(*memory, bytes);
  return cudaSuccess;
}

cudaError_t free_host(void* memory) {
  auto& m = machine();
  const Lock lock(m.mutex);
  if (m.refuses_in_capture("cudaFreeHost")) return cudaErrorStreamCaptureUnsupported;
  m.clocks.forget(memory, m.pinned[memory]);
  m.pinned.erase(memory);
  std::free(memory);
  return cudaSuccess;
}

Calls make_table() {
  Calls t;
  t.cudaDeviceGetStreamPriorityRange = [](int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  };
  t.cudaDriverGetVersion = [](int* version) { return *version = 13000, cudaSuccess; };
  t.cudaEventCreateWithFlags = create_event;
  t.cudaEventElapsedTime = elapsed;
  t.cudaEventQuery = query;
  t.cudaEventRecord = record;
  t.cudaEventRecordWithFlags = record_with_flags;
  t.cudaEventSynchronize = synchronize_event;
  t.cudaFree = give_back;
  t.cudaFreeHost = free_host;
  t.cudaGetDevice = [](int* device) { return *device = current, cudaSuccess; };
  t.cudaGetDeviceCount = get_device_count;
  t.cudaGetDeviceProperties = get_properties;
  t.cudaGetErrorName = [](cudaError_t) { return "simulated error"; };
  t.cudaGetErrorString = [](cudaError_t) {
    const auto& deadlock = machine().turns.deadlock;
    return deadlock.empty() ? "the simulated GPU refuses the call" : deadlock.c_str();
  };
  t.cudaGetLastError = [] { return cudaSuccess; };
  t.cudaHostAlloc = allocate_host;
  t.cudaMalloc = allocate;
  t.cudaMemGetInfo = [](size_t* free, size_t* total) {
    *free = *total = size_t{1} << 30;
    return cudaSuccess;
  };
  t.cudaMemcpyAsync = copy;
  t.cudaMemsetAsync = set_bytes;
  t.cudaRuntimeGetVersion = [](int* version) { return *version = 13000, cudaSuccess; };
  t.cudaSetDevice = set_device;
  t.cudaStreamCreateWithPriority = create_stream;
  t.cudaStreamSynchronize = synchronize_stream;
  t.cudaStreamWaitEvent = wait_event;
  t.ncclMemAlloc = [](void** p, size_t bytes) {
    if (allocate(p, bytes) != cudaSuccess) return ncclSystemError;
    const Lock lock(machine().mutex);
    nccl_gives(*p, bytes);
    return ncclSuccess;
  };
  t.ncclMemFree = [](void* p) {
    {
      const Lock lock(machine().mutex);
      nccl_frees(p);
    }
    return give_back(p) == cudaSuccess ? ncclSuccess : ncclSystemError;
  };
  add_blas_lt(t);
  add_nccl(t);
  add_graphs(t);
  return t;
}

}  // namespace

Machine& machine() {
  static auto* made = [] {
    auto* m = new Machine;
    for (int d = 0; d < kDevices; ++d) {
      m->streams.push_back(std::make_unique<StreamState>(StreamState{d, {}}));
    }
    return m;
  }();
  return *made;
}

StreamState& Machine::stream(cudaStream_t handle) {
  return handle ? *reinterpret_cast<StreamState*>(handle) : *streams[current];
}

void Machine::push(StreamState& stream, Op op) {
  if (op.what.empty()) op.what = label_or("");
  if (stream.order == 0) {
    for (const auto& other : streams) {
      if (other->device == stream.device) stream.order = std::max(stream.order, other->order);
    }
    ++stream.order;
    stream.weight = turns.open && random() % 3 == 0 ? 20 : 1;
  }
  stream.queue.push_back(std::move(op));
}

void Machine::record_on(EventState& event, StreamState& on) {
  clocks.recorded(event, on);
  const int64_t number = ++event.recorded;
  event.on = &on;
  event.after = label_or("");
  push(on, [this, &event, number] {
    event.passed = std::max(event.passed, number);  // a later record may have run
    event.time = clock;
  });
}

void Machine::wait_on(StreamState& on, EventState& event) {
  clocks.waits(on, event);
  push(on, {[&event, number = event.recorded] { return event.passed >= number; }, [] {},
            [wait = wait_of(event)] { return wait; }});
}

int64_t Machine::run_some(int64_t most) {
  int64_t ran = 0;
  std::vector<StreamState*> ready;
  while (ran < most) {
    ready.clear();
    uint64_t weights = 0;
    for (const auto& stream : streams) {
      if (!stream->queue.empty()) ready.push_back(stream.get());
    }
    // In an order that does not depend on which thread made its streams first: a call of NCCL that
    // is asked whether it is ready thereby arrives.
    std::sort(ready.begin(), ready.end(), [](const StreamState* a, const StreamState* b) {
      return std::pair(a->device, a->order) < std::pair(b->device, b->order);
    });
    std::erase_if(ready, [](const StreamState* stream) { return !stream->queue.front().ready(); });
    for (const auto* stream : ready) weights += stream->weight;
    if (ready.empty()) break;
    auto place = random() % weights;
    size_t index = 0;
    for (; place >= ready[index]->weight; ++index) place -= ready[index]->weight;
    auto& chosen = *ready[index];
    const auto op = std::move(chosen.queue.front());
    chosen.queue.pop_front();
    clock += 0.001;
    order = (order ^ static_cast<uint64_t>(64 * chosen.order + chosen.device)) * 1099511628211U;
    op.run();
    ++ran;
  }
  return ran;
}

void restart(uint64_t seed) {
  auto& m = machine();
  const Lock lock(m.mutex);
  m.random.seed(m.seed = seed);
  m.turns = {};
  for (const auto& stream : m.streams) {
    stream->queue.clear();
    stream->name.clear();
    stream->order = 0;
    stream->weight = 1;
    stream->capture.reset();
  }
  for (const auto& event : m.events) event->passed = event->recorded;
  m.broken.clear();
  m.clocks.clear();
  table() = make_table();
  restart_nccl();
}

void submit(cudaStream_t stream, std::function<void()> work) {
  auto& m = machine();
  const Lock lock(m.mutex);
  m.submit(m.stream(stream), [&m, work = std::move(work)](StreamState& on) { m.push(on, work); });
}

void submit(cudaStream_t stream, std::function<void()> work, const Accesses& accesses) {
  auto& m = machine();
  Lock lock(m.mutex);
  m.submit(m.stream(stream), [&m, work = std::move(work), accesses](StreamState& on) {
    m.clocks.submitted(on, label_or("an op"), accesses);
    m.push(on, work);
  });
  m.submitted(lock);
}

void host_accesses(const Accesses& accesses) {
  auto& m = machine();
  const Lock lock(m.mutex);
  m.clocks.host_accesses(accesses, "the host");
}

std::vector<std::string> races() {
  auto& m = machine();
  const Lock lock(m.mutex);
  return {m.clocks.races().begin(), m.clocks.races().end()};
}

namespace {
std::map<cudaStream_t, std::shared_ptr<bool>>& held() {
  static std::map<cudaStream_t, std::shared_ptr<bool>> flags;
  return flags;
}
}  // namespace

void hold(cudaStream_t stream) {
  auto& m = machine();
  const Lock lock(m.mutex);
  const auto open = held()[stream] = std::make_shared<bool>(false);
  m.push(m.stream(stream), {[open] { return *open; }, [] {}, {}});
}

void release(cudaStream_t stream) {
  auto& m = machine();
  const Lock lock(m.mutex);
  *held().at(stream) = true;
}

int current_device() { return current; }

Calls& table() {
  static Calls made = make_table();
  return made;
}

std::vector<std::string> broken_rules() {
  auto& m = machine();
  const Lock lock(m.mutex);
  return m.broken;
}

}  // namespace perigee::cuda::simulated

namespace perigee::cuda {

const Calls& calls() { return simulated::table(); }

}  // namespace perigee::cuda
