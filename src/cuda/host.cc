// The plugin's exported entry point.
#include "base/fail.h"
#include "cuda/check.h"
#include "cuda/device.h"
#include "cuda/nccl/by_host.h"
#include "cuda/nccl/lane.h"
#include "cuda/nccl/nccl.h"
#include "cuda/try_gpu.h"
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

  std::string try_gpu(int index) override { return cuda::try_gpu(index); }

  Versions versions() override {
    int runtime = 0, driver = 0;
    PERIGEE_CUDA(cudaRuntimeGetVersion, &runtime);
    // 0 where there is no driver.
    PERIGEE_CUDA(cudaDriverGetVersion, &driver);
    return {.cuda = version_text(runtime),
            .nccl = nccl_version(),
            .driver = driver == 0 ? "no driver" : "a driver for CUDA " + version_text(driver)};
  }
};

}  // namespace
}  // namespace perigee::cuda

extern "C" perigee::exec::CudaHost* perigee_cuda_host() {
  static perigee::cuda::Host host;
  return &host;
}
