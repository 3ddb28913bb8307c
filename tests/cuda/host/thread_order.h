// The order of threads in kernels that run on the host (launch.h).
#pragma once

#include <cstdint>

namespace perigee::cuda {

// Order in which the threads of a block run between barriers.
enum class ThreadOrder : uint8_t { ascending, descending };
extern ThreadOrder thread_order;

}  // namespace perigee::cuda
