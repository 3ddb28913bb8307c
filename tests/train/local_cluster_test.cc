// The cluster that jobs without a description are planned for.
#include "train/plan/local_cluster.h"

#include <stdlib.h>

#include "cost/cpu_links.h"
#include "tests/support/torch_test.h"
#include "train/trainer.h"

namespace perigee::train {
namespace {

cost::Cluster cluster_with(const std::string& communicator) {
  const auto job = Job::parse(
      "[model]\nkind = 'mlp'\n[data]\nsynthetic = true\n[cluster]\ndevice = 'cpu'\n"
      "communicator = '" +
          communicator + "'\n",
      "test.toml");
  return cluster_of(job, 4, "");
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

}  // namespace
}  // namespace perigee::train
