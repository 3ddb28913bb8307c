#include "base/error.h"
#include "exec/cuda.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

using Catch::Contains;

// First in this program (files link by name): the CUDA plugin stays open.
TEST_CASE("the CUDA plugin opens on any machine and registers LibTorch's CUDA kernels") {
  const auto mm = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "");
  CHECK_FALSE(mm.hasKernelForDispatchKey(c10::DispatchKey::CUDA));
  auto& host = cuda_host();
  CHECK(mm.hasKernelForDispatchKey(c10::DispatchKey::CUDA));
  CHECK_THAT(host.versions().cuda, Catch::StartsWith("13."));
  CHECK_THAT(host.versions().nccl, Catch::StartsWith("2."));
  CHECK_THAT(host.versions().driver, Contains("driver"));
  CHECK(&cuda_host() == &host);
}

TEST_CASE("the report of a machine lists its GPUs, or the reason for none and the remedy") {
  const auto gpus = cuda_host().gpus();
  if (gpus.found.empty()) {
    CHECK_THAT(gpus.why_none, Contains("device = \"cpu\""));
    CHECK_THROWS_WITH(
        cuda_host().device({}),
        Catch::StartsWith("[cuda] device = \"cuda\" needs an NVIDIA GPU, but got: ") &&
            Contains("device = \"cpu\""));
    return;
  }
  for (const auto& gpu : gpus.found) {
    CHECK_FALSE(gpu.name.empty());
    CHECK(gpu.memory > int64_t{1} << 30);
    CHECK(gpu.processors > 0);
  }
  const int beyond = static_cast<int>(gpus.found.size());
  CHECK_THROWS_WITH(cuda_host().device({.index = beyond}),
                    Contains("but a rank asks for GPU " + std::to_string(beyond)));
}

TEST_CASE("NCCL refuses a rank without a GPU before the rendezvous") {
  CHECK_THROWS_WITH(cuda_host().communicator({.world = 2}, cpu_device()),
                    Catch::StartsWith("[communicator] NCCL needs a rank's GPU"));
}

}  // namespace
}  // namespace perigee::exec
