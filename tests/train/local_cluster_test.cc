// The cluster that jobs without a description are planned for.
#include "train/plan/local_cluster.h"

#include "cost/cpu_links.h"
#include "tests/support/torch_test.h"
#include "train/trainer.h"

namespace perigee::train {
namespace {

TEST_CASE("CPU ranks are planned with the costs of their communicator") {
  const auto links = [](const std::string& communicator) {
    const auto job = Job::parse(
        "[model]\nkind = 'mlp'\n[data]\nsynthetic = true\n[cluster]\ndevice = 'cpu'\n"
        "communicator = '" +
            communicator + "'\n",
        "test.toml");
    return cluster_of(job, 4, "").links;
  };
  CHECK((links("auto") == std::vector{cost::shared_memory_link(4)}));
  CHECK((links("shared") == links("auto")));
  CHECK((links("gloo") == std::vector{cost::gloo_link(4)}));
}

}  // namespace
}  // namespace perigee::train
