#include "train/ranks/connect.h"

#include "base/error.h"
#include "exec/cuda.h"
#include "tests/support/torch_test.h"
#include "train/ranks/carriers.h"
#include "train/ranks/device.h"

using namespace perigee;
using train::gpu_of_rank;

namespace {

job::Job on_cuda() {
  job::Job job;
  job.cluster.device = "cuda";
  return job;
}

}  // namespace

TEST_CASE("each rank takes a GPU of its own, and ranks share a single GPU") {
  const auto gpu = [](int64_t gpus, int64_t local_rank, int64_t local_world) {
    return gpu_of_rank(gpus, {.local_rank = local_rank, .local_world = local_world});
  };
  CHECK(gpu(1, 0, 1) == 0);
  CHECK(gpu(1, 3, 4) == 0);
  CHECK(gpu(4, 0, 4) == 0);
  CHECK(gpu(4, 3, 4) == 3);
  CHECK(gpu(8, 1, 2) == 1);
  CHECK_THROWS_WITH(gpu(2, 0, 4),
                    "[cluster] every rank needs a GPU of its own where a host has several, but 4 "
                    "ranks are on a host with 2 GPUs: start 2 there (--nproc, cluster.ranks), or "
                    "use device = \"cpu\"");
}

TEST_CASE("ranks take the listed GPUs in the order of the list") {
  job::Job job;
  CHECK(train::usable_gpus(job.cluster, 3) == std::vector<int64_t>{0, 1, 2});
  job.cluster.devices = "2, 0";
  CHECK(train::usable_gpus(job.cluster, 3) == std::vector<int64_t>{2, 0});
  CHECK(train::default_ranks(job) == 2);
  CHECK_THROWS_WITH(train::usable_gpus(job.cluster, 2),
                    "[cluster] cluster.devices lists GPUs of this host, which has 2, but got 2");
  for (const std::string wrong : {"1,1", "a", "0,", ",0", "-1", "0 1"}) {
    job.cluster.devices = wrong;
    CHECK_THROWS_WITH(job::devices_of(job.cluster),
                      "[job] cluster.devices lists different GPUs by their numbers, \"0,2\", but "
                      "got \"" +
                          wrong + "\"");
  }
}

TEST_CASE("a job on the CPU uses one communicator and needs no GPU") {
  job::Job job;
  job.cluster.device = "cpu";
  CHECK_FALSE(train::uses_gpu(job));
  const auto one = train::connect(job, {});
  CHECK(one.device->place().is_cpu());
  CHECK(one.communicator == one.tensors);
  const auto threads = train::connect_threads(job, 3);
  REQUIRE(threads.size() == 3);
  for (int64_t rank = 0; rank < 3; ++rank) {
    CHECK(threads[rank].communicator->rank() == rank);
    CHECK(threads[rank].tensors == threads[rank].communicator);
  }
}

TEST_CASE("keys of the job choose what carries messages, and what carries tensors of the hosts") {
  using Carrier = exec::ProcessOptions::Carrier;
  job::Job job;
  CHECK(train::messages_of(job) == exec::Messages::by_device);
  CHECK(train::carrier_of(job) == Carrier::automatic);
  job.set("cluster.messages=\"gloo\"");
  CHECK(train::messages_of(job) == exec::Messages::by_host);
  CHECK(train::carrier_of(job) == Carrier::automatic);
  job.set("cluster.communicator=\"gloo\"");
  CHECK(train::carrier_of(job) == Carrier::gloo);
  job.set("cluster.communicator=\"shared\"");
  CHECK(train::carrier_of(job) == Carrier::shared);
}

TEST_CASE("without a GPU, device = \"cuda\" is an error with a remedy, and \"\" selects the CPU") {
  if (exec::gpu_driver_present()) {
    WARN("this machine has a GPU, so what its lack does was not tested");
    return;
  }
  CHECK(train::uses_gpu(on_cuda()));
  CHECK_FALSE(train::uses_gpu({}));
  CHECK(train::open_device({})->place().is_cpu());
  const auto refuses = [](auto make) {
    CHECK_THROWS_WITH(make(), Catch::StartsWith("[cuda] device = \"cuda\" needs ") &&
                                  Catch::Contains("use device = \"cpu\""));
  };
  refuses([] { train::open_device(on_cuda()); });
  refuses([] { train::connect(on_cuda(), {}); });
  refuses([] { train::connect_threads(on_cuda(), 2); });
}
