#include "cost/op_time.h"

#include <algorithm>

namespace perigee::cost {

Time estimate(const OpWork& work, const DeviceSpec& device) {
  if (work.flops == 0 && work.bytes == 0) return {};
  const double reached = work.attention ? device.attention_efficiency : device.matrix_efficiency;
  const double rate = work.matrix ? device.peak_of(work.dtype) * reached : device.vector;
  const double arithmetic = work.flops / rate;
  const double traffic = work.bytes / (device.bandwidth * device.memory_efficiency);
  return {std::max(arithmetic, traffic) + device.launch, false};
}

}  // namespace perigee::cost
