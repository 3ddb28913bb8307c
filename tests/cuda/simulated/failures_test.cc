// Machines on which a GPU cannot be used, and failures while it is used: one message each, with the
// device and the remedy.
#include "cuda/failures.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>

#include "cuda/device.h"
#include "cuda/nccl/lane.h"
#include "tests/cuda/simulated/machine.h"
#include "tests/cuda/simulated/ranks.h"

namespace perigee::cuda {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;

// Returns the message of the Error that `f` throws.
template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

std::string error_of_device() {
  return error_of([] { make_device({.index = 1}); });
}

TEST_CASE("without a driver the message says so") {
  simulated::restart(1);
  simulated::table().cudaGetDeviceCount = [](int*) { return cudaErrorInsufficientDriver; };
  simulated::table().cudaDriverGetVersion = [](int* v) { return *v = 0, cudaSuccess; };
  CHECK(error_of_device() ==
        "[cuda] device = \"cuda\" needs an NVIDIA GPU, but got: no NVIDIA driver; install an "
        "NVIDIA driver for CUDA 13 (580 or later), or use device = \"cpu\"");
}

TEST_CASE("a driver that is older than the toolkit is named with both versions") {
  simulated::restart(1);
  simulated::table().cudaGetDeviceCount = [](int*) { return cudaErrorInsufficientDriver; };
  simulated::table().cudaDriverGetVersion = [](int* v) { return *v = 12040, cudaSuccess; };
  CHECK_THAT(error_of_device(),
             Contains("the NVIDIA driver is older than the toolkit: it is for CUDA 12.4, and 13.0 "
                      "is needed; install an NVIDIA driver for CUDA 13"));
}

TEST_CASE("a driver without a GPU, and a GPU that is not there, have messages of their own") {
  simulated::restart(1);
  CHECK_THAT(error_of([] { make_device({.index = 4}); }),
             Contains("this host has GPUs 0 to 3, but a rank asks for GPU 4; use at most as many"));
  simulated::table().cudaGetDeviceCount = [](int* n) { return *n = 0, cudaSuccess; };
  CHECK_THAT(error_of_device(), Contains("check nvidia-smi and CUDA_VISIBLE_DEVICES"));
}

TEST_CASE("a GPU below compute capability 8.0 is named") {
  simulated::restart(1);
  simulated::table().cudaGetDeviceProperties = [](cudaDeviceProp* p, int) {
    *p = {};
    p->major = 7;
    p->minor = 5;
    std::copy_n("Tesla T4", 9, p->name);
    return cudaSuccess;
  };
  CHECK_THAT(error_of_device(),
             Contains("GPU 1 (Tesla T4) has 7.5") && Contains("use device = \"cpu\""));
}

TEST_CASE("memory that others hold is distinguished from the rank's own") {
  simulated::restart(1);
  const auto device = make_device({.index = 2});
  const auto own = device->allocate(4096, false);
  simulated::table().cudaMalloc = [](void**, size_t) { return cudaErrorMemoryAllocation; };
  simulated::table().ncclMemAlloc = [](void**, size_t) { return ncclUnhandledCudaError; };
  simulated::table().cudaMemGetInfo = [](size_t* free, size_t* total) {
    *free = 1000;
    *total = 80'000;
    return cudaSuccess;
  };
  for (const bool communicates : {false, true}) {
    CHECK_THAT(error_of([&] { device->allocate(1 << 20, communicates); }),
               Contains("the program's frames need 1048576 bytes of memory, but 1000 of the 80000 "
                        "bytes of GPU 2 are free: this rank holds 4096, libraries and other "
                        "processes (nvidia-smi lists them) hold 74904; use more ranks"));
  }
}

TEST_CASE("an exclusive GPU that another process uses is named") {
  simulated::restart(1);
  simulated::table().cudaHostAlloc = [](void**, size_t, unsigned) {
    return cudaErrorDevicesUnavailable;
  };
  CHECK_THAT(error_of_device(), Contains("on GPU 1 must work") &&
                                    Contains("another process holds the GPU: nvidia-smi names it"));
}

TEST_CASE("LibTorch's failures on a GPU name it and a remedy") {
  simulated::restart(1);
  const auto failing = [](auto error) {
    const auto kernel = with_remedies([error](auto, auto, const exec::Draw&) { throw error; }, 3,
                                      [] { return int64_t{7}; });
    return error_of([&] { kernel({}, {}, {}); });
  };
  const c10::SourceLocation here{"f", "file", 1};
  CHECK_THAT(failing(c10::OutOfMemoryError(here, "out of memory")),
             Contains("[exec] LibTorch needs more memory, but ") && Contains("of GPU 3 are free") &&
                 Contains("this rank holds 7"));
  CHECK_THAT(failing(c10::AcceleratorError(here, cudaErrorECCUncorrectable, "CUDA error")),
             Contains("[cuda] an op on GPU 3 must work") &&
                 Contains("the GPU has failed: nvidia-smi -q") && Contains("--resume"));
  CHECK(failing(std::runtime_error("a shape")) == "a shape");
}

// From the 20th question on, a GPU has fallen off the bus.
std::atomic<int> questions = 0;
cudaError_t lost(cudaEvent_t) { return ++questions < 20 ? cudaErrorNotReady : cudaErrorUnknown; }

TEST_CASE("a GPU that falls off the bus ends all ranks with its name and the remedy") {
  simulated::restart(1);
  questions = 0;
  simulated::table().cudaEventQuery = lost;
  const auto errors = run_gpus(2, 20s, [&](exec::Communicator& communicator, CudaDevice& device) {
    const auto group = communicator.group("data", {0, 1});
    const auto entered = device.enter();
    const auto x = at::zeros({4});
    group->start({.kind = exec::Collective::Kind::all_reduce, .input = x, .output = x})->wait();
    device.synchronize([&] { communicator.check(); });
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains("cudaEventQuery on GPU ") && Contains("the GPU has failed"));
  }
}

// The message of a group that cannot connect, on rank 0.
std::string error_of_group() {
  return run_gpus(2, 5s, [](exec::Communicator& communicator, CudaDevice&) {
    communicator.group("data", {0, 1});
  })[0];
}

TEST_CASE("NCCL for another CUDA is named with the versions and a remedy") {
  simulated::restart(1);
  simulated::table().ncclCommInitRankConfig = [](ncclComm_t*, int, ncclUniqueId, int,
                                                 ncclConfig_t*) { return ncclUnhandledCudaError; };
  CHECK_THAT(error_of_group(),
             Contains("rank 0 must connect to the group data (ranks 0,1) by NCCL on GPU 0") &&
                 Contains("NCCL 2.28.9 may be built for another CUDA than the driver's 13.0: "
                          "install LibTorch's NCCL"));
}

TEST_CASE("an NCCL that is older than the one this was built with is refused") {
  simulated::restart(1);
  simulated::table().ncclGetVersion = [](int* v) { return *v = 21805, ncclSuccess; };
  CHECK_THAT(error_of_group(), Contains("NCCL 2.18.5 is loaded, but 2.19 or later is needed") &&
                                   Contains("put LibTorch's NCCL first in LD_LIBRARY_PATH"));
}

TEST_CASE("GPUs without peer access are told to go through the host") {
  simulated::restart(1);
  simulated::table().ncclCommInitRankConfig = [](ncclComm_t*, int, ncclUniqueId, int,
                                                 ncclConfig_t*) { return ncclUnhandledCudaError; };
  simulated::table().ncclGetLastError = [](ncclComm_t) {
    return "Cuda failure 217 'peer access is not supported between these two devices'";
  };
  CHECK_THAT(error_of_group(), Contains("on GPU 0") && Contains("set NCCL_P2P_DISABLE=1"));
}

}  // namespace
}  // namespace perigee::cuda
