// What methods may ask of the devices that a job runs on.
#pragma once

#include <functional>
#include <memory>

#include "compile/compile.h"
#include "cost/cluster.h"
#include "job/job.h"
#include "methods/method.h"

namespace perigee::train {

// Lets the methods of a request, which has its graph, ask what plans take and what devices and
// links do. `cluster` returns the description of so many ranks.
void ask_devices(methods::Request& request, const job::Job& job,
                 std::function<cost::Cluster(int64_t ranks)> cluster,
                 std::shared_ptr<compile::TraceSource> traces);

}  // namespace perigee::train
