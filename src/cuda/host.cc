// The plugin's exported entry point.
#include "base/fail.h"
#include "cuda/check.h"
#include "cuda/device.h"
#include "cuda/nccl/by_host.h"
#include "cuda/nccl/nccl.h"
#include "exec/cuda.h"

namespace perigee::cuda {
namespace {

class Host : public exec::CudaHost {
 public:
  Gpus gpus() override { return list_gpus(); }

  std::shared_ptr<exec::Device> device(const exec::CudaDeviceOptions& options) override {
    return make_device(options);
  }

  std::unique_ptr<exec::Communicator> communicator(const exec::RendezvousOptions& options,
                                                   std::shared_ptr<exec::Device> device) override {
    auto gpu = std::dynamic_pointer_cast<CudaDevice>(std::move(device));
    if (!gpu) fail("communicator", "NCCL needs a rank's GPU, but got another device");
    return nccl_communicator(options, std::move(gpu));
  }

  std::unique_ptr<exec::Communicator> by_host(std::shared_ptr<exec::Communicator> inner) override {
    return by_host_communicator(std::move(inner));
  }

  Versions versions() override {
    int runtime = 0, nccl = 0, driver = 0;
    PERIGEE_CUDA(cudaRuntimeGetVersion, &runtime);
    calls().ncclGetVersion(&nccl);
    // 0 where there is no driver.
    PERIGEE_CUDA(cudaDriverGetVersion, &driver);
    const auto cuda = [](int number) {
      return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
    };
    return {.cuda = cuda(runtime),
            .nccl = fmt::format("{}.{}.{}", nccl / 10000, nccl % 10000 / 100, nccl % 100),
            .driver = driver == 0 ? "no driver" : "a driver for CUDA " + cuda(driver)};
  }
};

}  // namespace
}  // namespace perigee::cuda

extern "C" perigee::exec::CudaHost* perigee_cuda_host() {
  static perigee::cuda::Host host;
  return &host;
}
