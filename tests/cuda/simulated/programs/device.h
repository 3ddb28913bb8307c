// A simulated GPU as the device of an executor.
#pragma once

#include <memory>

#include "cuda/device.h"
#include "exec/device.h"
#include "exec/recorder.h"

namespace perigee::cuda {

// Returns a device whose streams, events, copies, uploads and waits are those of `gpu`, and whose
// ops are the CPU's, run later as work of its compute stream. Each op declares to the detector of
// races the memory that its instruction reads and writes. `recorder`: in place of the GPU's. Both
// must outlive it.
std::shared_ptr<exec::Device> program_device(CudaDevice& gpu, int64_t rank,
                                             exec::Recorder* recorder = nullptr);

}  // namespace perigee::cuda
