// The cluster that jobs without a description are planned for.
#include "train/plan/local_cluster.h"

#include <stdlib.h>

#include "cost/cpu_links.h"
#include "tests/support/torch_test.h"
#include "train/trainer.h"

namespace perigee::train {
namespace {

Job job_with(const std::string& communicator, const std::string& device = "cpu") {
  return Job::parse("[model]\nkind = 'mlp'\n[data]\nsynthetic = true\n[cluster]\ndevice = '" +
                        device + "'\ncommunicator = '" + communicator + "'\n",
                    "test.toml");
}

cost::Cluster cluster_with(const std::string& communicator, int64_t hosts = 1) {
  return cluster_of(job_with(communicator), {4, hosts}, "");
}

// The environment of one of 4 ranks, of which so many are on its host, during its lifetime.
struct Launched {
  explicit Launched(const char* of_host) {
    ::setenv("WORLD_SIZE", "4", 1);
    ::setenv("LOCAL_WORLD_SIZE", of_host, 1);
  }
  ~Launched() {
    ::unsetenv("WORLD_SIZE");
    ::unsetenv("LOCAL_WORLD_SIZE");
  }
};

using Links = std::vector<cost::Link>;

TEST_CASE("CPU ranks of one host are planned with the costs of their communicator") {
  const auto links = [](const std::string& communicator) {
    return cluster_with(communicator).links;
  };
  CHECK((links("auto") == Links{cost::shared_memory_link(4)}));
  CHECK((links("shared") == links("auto")));
  CHECK((links("gloo") == Links{cost::gloo_link(4)}));
  const Launched launched("4");
  CHECK((links("auto") == Links{cost::shared_memory_link(4)}));
}

TEST_CASE("CPU ranks of several hosts share memory within a host, and its bytes") {
  const double memory = memory_of_host();
  CHECK(cluster_with("auto").devices[0].memory == Approx(memory / 4).epsilon(0.05));
  {
    const Launched launched("2");
    const auto cluster = cluster_with("auto");
    CHECK((cluster.links == Links{cost::shared_memory_link(2), cost::gloo_link(4, "network")}));
    CHECK(cluster.devices[0].memory == Approx(memory / 2).epsilon(0.05));
    CHECK((cluster_with("gloo").links == Links{cost::gloo_link(2), cost::gloo_link(4, "network")}));
  }
  for (const char* of_host : {"1", "3"}) {  // 3 and 1
    const Launched launched(of_host);
    CHECK((cluster_with("auto").links == Links{cost::gloo_link(4, "network")}));
  }
}

TEST_CASE("a plan for several hosts has their ranks, unless a launcher has other numbers") {
  const auto two_hosts = cluster_with("auto", 2);
  CHECK((two_hosts.links == Links{cost::shared_memory_link(2), cost::gloo_link(4, "network")}));
  CHECK(two_hosts.devices[0].memory == Approx(memory_of_host() / 2).epsilon(0.05));
  CHECK(sharing_ranks(job_with("auto"), {4, 2}) == 2);
  CHECK(sharing_ranks(job_with("auto"), {4, 1}) == 4);
  CHECK(sharing_ranks(job_with("auto"), {5, 2}) == 1);
  const Launched launched("4");
  CHECK((cluster_with("auto", 2).links == Links{cost::shared_memory_link(4)}));
}

TEST_CASE("GPUs of several hosts are planned with a slower network between the hosts") {
  const auto links = [] { return cluster_of(job_with("auto", "cuda"), {4}, "").links; };
  REQUIRE(links().size() == 1);
  CHECK(links()[0].ranks == 4);
  const auto node = links()[0];
  {
    const Launched launched("2");
    const auto two_hosts = links();
    REQUIRE(two_hosts.size() == 2);
    CHECK(two_hosts[0].ranks == 2);
    CHECK(two_hosts[0].bandwidth == node.bandwidth);
    CHECK(two_hosts[1].ranks == 4);
    CHECK(two_hosts[1].bandwidth < node.bandwidth);
  }
  const Launched launched("1");
  REQUIRE(links().size() == 1);
  CHECK(links()[0].ranks == 4);
  CHECK(links()[0].bandwidth < node.bandwidth);
}

}  // namespace
}  // namespace perigee::train
