// Answers of the devices that a job runs on to the questions of methods.
#pragma once

#include <functional>
#include <memory>

#include "compile/compile.h"
#include "cost/cluster.h"
#include "job/job.h"
#include "methods/method.h"

namespace perigee::train {

// Sets the callbacks of a request, which has its graph, by which methods ask for the memory of
// plans and the rates of devices and links. `cluster` returns the description of a number of ranks.
void ask_devices(methods::PlanRequest& request, const job::Job& job,
                 std::function<cost::Cluster(int64_t ranks)> cluster,
                 std::shared_ptr<compile::TraceSource> traces);

}  // namespace perigee::train
