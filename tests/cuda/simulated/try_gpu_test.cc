// The test of a GPU that `perigee doctor` runs, on the simulated machine.
#include "cuda/try_gpu.h"

#include <cstring>

#include "tests/cuda/simulated/machine.h"
#include "tests/support/torch_test.h"

namespace perigee::cuda {
namespace {

// Stand-ins that are wrong: they do nothing.
cudaError_t lost_copy(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t) {
  return cudaSuccess;
}

ncclResult_t lost_sum(const void*, void* to, size_t n, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                      cudaStream_t) {
  std::memset(to, 0, 4 * n);
  return ncclSuccess;
}

TEST_CASE("a GPU whose kernels, copies and NCCL work passes its test") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    simulated::restart(seed);
    REQUIRE(try_gpu(static_cast<int>(seed % 4)).empty());
    REQUIRE(simulated::broken_rules().empty());
  }
}

TEST_CASE("the test of a GPU names the part that fails") {
  simulated::restart(1);
  simulated::table().cudaMemcpyAsync = lost_copy;
  CHECK_THAT(try_gpu(1), Catch::Contains("wrong result"));
  simulated::restart(1);
  simulated::table().ncclAllReduce = lost_sum;
  CHECK(try_gpu(1) == "a sum by NCCL gives a wrong result");
  simulated::restart(1);
  simulated::table().ncclCommInitRankConfig = [](ncclComm_t*, int, ncclUniqueId, int,
                                                 ncclConfig_t*) { return ncclUnhandledCudaError; };
  CHECK_THAT(try_gpu(1), Catch::Contains("ncclCommInitRankConfig"));
  simulated::restart(1);
  CHECK_THAT(try_gpu(7), Catch::Contains("GPU 7"));
}

}  // namespace
}  // namespace perigee::cuda
