// LibTorch's side of the simulated machine: a current stream for each device and thread.
#include "cuda/torch_side.h"

#include <array>

#include "cuda/handles.h"
#include "tests/cuda/simulated/machine.h"

namespace perigee::cuda {
namespace {

thread_local std::array<cudaStream_t, simulated::kDevices> current{};

struct Direction {
  Direction(int d, cudaStream_t stream) : guard(d), device(d), before(current[d]) {
    current[d] = stream;
  }
  ~Direction() { current[device] = before; }

  DeviceGuard guard;
  int device;
  cudaStream_t before;
};

}  // namespace

namespace simulated {
bool tf32 = true;  // as cuDNN's default
}

void start_torch() {}
void allow_tf32(bool allowed) { simulated::tf32 = allowed; }

std::shared_ptr<void> direct_to(int device, cudaStream_t stream) {
  return std::make_shared<Direction>(device, stream);
}

cudaStream_t current_stream(int device) { return current[device]; }
cudaStream_t current_stream() { return current[simulated::current_device()]; }

void make_workspaces() {}
BlasLt blas_lt() { return {}; }
CapturePool::CapturePool(int device) : device_(device) {}
CapturePool::~CapturePool() { close(); }
void CapturePool::open() { open_ = used_ = true; }
void CapturePool::close() { open_ = false; }
void serve(int, exec::ServedAllocations*) {}
void record(int, std::vector<exec::RecordedAllocations::Entry>*) {}
int64_t reset_tensor_peak(int) { return 0; }
int64_t tensor_peak(int) { return 0; }
int64_t cached_memory(int) { return 0; }
double product_of_ones(int64_t n) { return static_cast<double>(n); }
void free_cached_memory() {}

}  // namespace perigee::cuda
