// Steps as CUDA graphs (exec/recorder.h): work that the host submits to the rank's streams is captured
// from the compute stream, which other streams join and leave by events, and launched as one graph.
#pragma once

#include <memory>

#include "cuda/device.h"
#include "exec/recorder.h"

namespace perigee::cuda {

// Records on the compute stream of `device`, which must outlive its steps. While it records, the
// thread must not allocate memory of CUDA, wait for the GPU or ask for events: CUDA then refuses the
// whole graph. A graph must be dropped, or destroyed, before the communicators whose collectives it
// has: NCCL waits for that when it destroys or aborts them.
std::unique_ptr<exec::Recorder> graph_recorder(CudaDevice& device);

// Destroys the graphs of all recorded steps, none of which can be launched afterwards. CUDA frees a
// graph that runs when it ends. Throws nothing.
void destroy_graphs(CudaDevice& device);

}  // namespace perigee::cuda
